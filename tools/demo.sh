#!/usr/bin/env bash
# corpus -> ETL -> two-process training -> evaluation -> export -> a sample prediction (`make demo`).
set -euo pipefail
cd "$(dirname "$0")/.."
framework=${FRAMEWORK:-tensorflow}
# CLUSTER=1: the same on a real Hadoop (`make demo CLUSTER=1`), which needs the whole set-up.
if [ -n "${CLUSTER:-}" ]; then
    tools/setup.sh
    demo=(tools.demo.cluster)
else
    # Horovod is compiled beside the demo's first steps, which do not need it.
    echo "=== [1/9] set-up (docs/setup.md; the first time minutes, and 4 GB of disk)" >&2
    tools/setup.sh --demo "$framework" --without-horovod
    demo=(tools.demo --set-up)
fi
# It trains two ranks, on CPUs unless you name GPUs: a workstation may have one.
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES-}
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}" PATH="$PWD/.venv/bin:$PATH"
exec .venv/bin/python -m "${demo[@]}" --framework "$framework" "$@"
