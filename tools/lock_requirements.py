"""Resolve the requirements files into lock files with hashes.

    python3.11 tools/lock_requirements.py

requirements.txt -> requirements.lock, requirements-gpu-*.txt -> requirements-gpu-*.lock, and uv's
own pin in tools/uv-requirements.txt. Horovod is left out: set-up builds it (docs/setup.md).
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from toolkit import ROOT, UV_REQUIREMENTS, Installer, guarded, step

COMPILE = (
    "pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--annotation-style=line",
    "--python-version", "3.11",
)  # fmt: skip


def without_horovod(text: str) -> str:
    """The requirements without Horovod, which set-up builds."""
    return re.sub(r"(?m)^horovod\b.*\n?", "", text)


def lock(installer: Installer, source: str, target: Path, log: str) -> None:
    """Resolve requirements text into a lock file; versions already locked are kept where they fit.

    The old file stays until the new one is whole.
    """
    work = ROOT / "build" / "lock"
    work.mkdir(parents=True, exist_ok=True)
    requirements, result = work / f"{target.stem}.in", work / target.name
    requirements.write_text(source)
    if target.is_file():
        result.write_text(target.read_text())  # uv keeps the versions that it finds in its output
    installer.run(
        [*COMPILE, "--output-file", result, requirements],
        log,
        what=f"resolving {target.name}",
        remedy="read the conflict above; `pip config list` shows the index",
    )
    os.replace(result, target)


def main() -> None:
    """Renew all lock files."""
    installer = Installer(sys.executable, ROOT / "build" / "setup-logs")
    installer.ready()
    for source in sorted(ROOT.glob("requirements*.txt")):
        target = source.with_suffix(".lock")
        with step(f"{source.name} -> {target.name}"):
            text = without_horovod(source.read_text())
            lock(installer, text, target, f"lock-{source.stem}.log")
    with step(UV_REQUIREMENTS.name):
        text = UV_REQUIREMENTS.read_text()
        pinned = ROOT / "build" / "lock" / "uv.lock"
        pinned.unlink(missing_ok=True)
        lock(installer, f"uv=={installer.version}\n", pinned, "lock-uv.log")
        comments = "".join(line for line in text.splitlines(True) if line.startswith("#"))
        UV_REQUIREMENTS.write_text(comments + pinned.read_text())


if __name__ == "__main__":
    sys.exit(guarded(main))
