"""The tests' environment with an old PySpark, which the first call creates in the cache.

    python3.11 tools/spark_env.py 3.5     # prints the path of its interpreter

It is filled from requirements-spark35.lock, where that of the line in question replaces what it has
too, with every package checked by its hash. Other locks have another environment.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
from pathlib import Path

from toolkit import ROOT, Installer, cache_root, exclusive, guarded

BASE = ROOT / "requirements-spark35.lock"


def locked(name: str) -> str:
    """The lock of "spark34" or "spark35": packages with their versions and hashes."""
    overrides = (ROOT / f"requirements-{name}.lock").read_text(encoding="utf-8")
    replaced = {_package(block) for block in _blocks(overrides)}
    rest = _blocks(BASE.read_text(encoding="utf-8"))
    return overrides + "".join(block for block in rest if _package(block) not in replaced)


def _blocks(text: str) -> list[str]:
    return re.split(r"(?m)^(?=\S)", text)


def _package(block: str) -> str:
    return block.partition("==")[0]


def provide(line: str) -> Path:
    """Path of the interpreter with that line of PySpark; the first call takes minutes.

    Raises:
        SetupError: a package cannot be fetched or built.
    """
    name = f"spark{line.replace('.', '')}"
    text = locked(name)
    digest = hashlib.sha256((text + sys.version).encode()).hexdigest()[:12]
    home = cache_root() / f"{name}-{digest}"
    python = home / "bin" / "python"
    whole = home / "howdah-whole"
    if whole.exists():
        return python
    cache_root().mkdir(parents=True, exist_ok=True)
    with exclusive(cache_root() / f"{name}.lock", f"the set-up of PySpark {line}"):
        if whole.exists():
            return python
        installer = Installer(sys.executable, ROOT / "build" / "setup-logs")
        installer.ready()
        base = os.path.realpath(sys.executable)
        installer.run(
            ["venv", "--python", base, "--clear", home],
            f"{name}-venv.log",
            what=f"creating the environment for PySpark {line}",
            remedy=f"is {cache_root()} writable?",
        )
        lock = home / "requirements.lock"
        lock.write_text(text, encoding="utf-8")
        installer.run(
            # its wheel is built here: PyPI has it as source only
            ["pip", "sync", "--python", python, "--require-hashes", lock],
            f"{name}-sync.log",
            what=f"installing PySpark {line} (about 320 MB)",
            remedy="the index must be reachable the first time: `pip config list`",
        )
        for other in cache_root().glob(f"{name}-*"):
            if other != home and other.is_dir():
                shutil.rmtree(other)
        whole.touch()
    return python


if __name__ == "__main__":
    sys.exit(guarded(lambda: print(provide(*sys.argv[1:]))))
