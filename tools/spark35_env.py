"""The tests' environment with PySpark 3.5, which the first call creates in the cache.

    python3.11 tools/spark35_env.py     # prints the path of its interpreter

It is filled from requirements-spark35.lock, with every package checked by its hash. Another lock
has another environment.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

from toolkit import ROOT, Installer, cache_root, exclusive, guarded

LOCK = ROOT / "requirements-spark35.lock"


def provide() -> Path:
    """Path of its interpreter; the first call takes minutes.

    Raises:
        SetupError: a package cannot be fetched or built.
    """
    digest = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:12]
    home = cache_root() / f"spark35-{digest}"
    python = home / "bin" / "python"
    whole = home / "howdah-whole"
    if whole.exists():
        return python
    cache_root().mkdir(parents=True, exist_ok=True)
    with exclusive(cache_root() / "spark35.lock", "the set-up of PySpark 3.5"):
        if whole.exists():
            return python
        installer = Installer(sys.executable, ROOT / "build" / "setup-logs")
        installer.ready()
        base = os.path.realpath(sys.executable)
        installer.run(
            ["venv", "--python", base, "--clear", home],
            "spark35-venv.log",
            what="creating the environment for PySpark 3.5",
            remedy=f"is {cache_root()} writable?",
        )
        installer.run(
            # its wheel is built here: PyPI has PySpark 3.5 as source only
            ["pip", "sync", "--python", python, "--require-hashes", LOCK],
            "spark35-sync.log",
            what="installing PySpark 3.5 (about 320 MB)",
            remedy="the index must be reachable the first time: `pip config list`",
        )
        for other in cache_root().glob("spark35-*"):
            if other != home and other.is_dir():
                shutil.rmtree(other)
        whole.touch()
    return python


if __name__ == "__main__":
    sys.exit(guarded(lambda: print(provide())))
