#!/usr/bin/env bash
# corpus -> ETL -> two-process training -> evaluation -> export -> a sample prediction (`make demo`).
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PATH="$PWD/.venv/bin:$PATH"
exec .venv/bin/python tools/demo.py --framework "${FRAMEWORK:-tensorflow}" "$@"
