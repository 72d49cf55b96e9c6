"""`python -m bench [NAME...]`: all benches, or those named; `python -m bench --list` names them."""

from __future__ import annotations

import importlib
import pkgutil
import sys

from bench import benches


def names() -> list[str]:
    """Benches there are: bench/benches/<name>.py."""
    return [module.name for module in pkgutil.iter_modules(benches.__path__)]


def main(arguments: list[str]) -> int:
    """Run the named benches one after the other."""
    if "--list" in arguments:
        print("\n".join(names()))
        return 0
    unknown = sorted(set(arguments) - set(names()))
    if unknown:
        print(f"no bench {', '.join(unknown)}; there are: {', '.join(names())}", file=sys.stderr)
        return 2
    for name in arguments or names():
        importlib.import_module(f"{benches.__name__}.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
