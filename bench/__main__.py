"""`python -m bench [NAME...]`: all benches, or those named; `python -m bench --list` names them.

One bench may have options of its own: `python -m bench chaos --hours 1`.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from types import ModuleType

from bench import benches

_WITH_OPTIONS = ("chaos",)


def names() -> list[str]:
    """Benches there are: bench/benches/<name>.py."""
    return [module.name for module in pkgutil.iter_modules(benches.__path__)]


def main(arguments: list[str]) -> int:
    """Run the named benches one after the other."""
    if "--list" in arguments:
        print("\n".join(names()))
        return 0
    if len(arguments) > 1 and arguments[0] in _WITH_OPTIONS:
        return _bench(arguments[0]).main(arguments[1:])
    unknown = sorted(set(arguments) - set(names()))
    if unknown:
        print(f"no bench {', '.join(unknown)}; there are: {', '.join(names())}", file=sys.stderr)
        return 2
    ended = [_bench(name).main() for name in arguments or names()]
    return max(code or 0 for code in ended)


def _bench(name: str) -> ModuleType:
    return importlib.import_module(f"{benches.__name__}.{name}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
