#!/bin/sh
# Find a Python 3.11 (on Debian 12: install it where it is missing), then run tools/setup_env.py.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)

usable() {
    "$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' >/dev/null 2>&1
}

find_python() {
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 /usr/bin/python3.11 python3 /usr/bin/python3; do
        if usable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

if [ -n "${PYTHON:-}" ] && ! usable "$PYTHON"; then
    echo "error: there is no Python 3.11 at PYTHON=$PYTHON" >&2
    echo "  remedy: unset PYTHON, or name a Python 3.11" >&2
    exit 1
fi
if ! python=$(find_python); then
    as_root=""
    if [ "$(id -u)" != 0 ]; then as_root="sudo -n"; fi
    if command -v apt-get >/dev/null 2>&1; then
        log=$here/../build/setup-logs/apt-python.log
        mkdir -p "$(dirname "$log")"
        echo "==> no Python 3.11 found: asking apt-get for it (log: $log)" >&2
        { $as_root apt-get update -q && $as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -q --no-install-recommends python3.11 python3.11-venv python3.11-dev
        } >"$log" 2>&1 </dev/null || tail -n 5 "$log" >&2
    fi
    if ! python=$(find_python); then
        echo "error: there is no Python 3.11 on this machine" >&2
        echo "  found:  $(python3 --version 2>/dev/null || echo 'no python3')" >&2
        echo "  remedy: Debian 12 has it (apt-get install python3.11 python3.11-venv" >&2
        echo "          python3.11-dev); elsewhere install one and give its path:" >&2
        echo "          PYTHON=/path/to/python3.11 make setup" >&2
        exit 1
    fi
fi
exec "$python" "$here/setup_env.py" "$@"
