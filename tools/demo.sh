#!/usr/bin/env bash
# corpus -> ETL -> two-process training -> evaluation -> export -> a sample prediction (`make demo`).
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PATH="$PWD/.venv/bin:$PATH"
# CLUSTER=1: the same on a real Hadoop (`make demo CLUSTER=1`)
module=tools.demo
[ -z "${CLUSTER:-}" ] || module=tools.demo.cluster
exec .venv/bin/python -m "$module" --framework "${FRAMEWORK:-tensorflow}" "$@"
