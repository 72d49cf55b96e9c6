"""`python -m bench [NAME...]`: all benches, or those named; `python -m bench --list` names them."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import bench


def names() -> list[str]:
    """Benches there are: bench/bench_<name>.py."""
    found = [module.name for module in pkgutil.iter_modules(bench.__path__)]
    return [name.removeprefix("bench_") for name in found if name.startswith("bench_")]


def main(words: list[str]) -> int:
    """Run the named benches one after the other."""
    if "--list" in words:
        print("\n".join(names()))
        return 0
    unknown = sorted(set(words) - set(names()))
    if unknown:
        print(f"no bench {', '.join(unknown)}; there are: {', '.join(names())}", file=sys.stderr)
        return 2
    for name in words or names():
        importlib.import_module(f"bench.bench_{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
