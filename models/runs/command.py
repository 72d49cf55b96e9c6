"""The command that began an attempt, for run.json."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence

from howdah import redact

VARIABLE = "HOWDAH_COMMAND"
"""Environment variable in which commands such as `howdah train` pass it to the ranks."""
_NAME = re.compile(r"[\w.-]+(?=[\"']?\s*[:=])")
_MOST = 4_000
"""Most characters of a command that are recorded."""


def shown_command(argv: Sequence[str]) -> str:
    """`["/usr/bin/howdah", "train", "-c", "a.yaml"]` as it was typed, without secrets.

    >>> shown_command(["/opt/howdah", "train", "--set", "tracking.mlflow.uri=http://me:pw@mlflow"])
    'howdah train --set tracking.mlflow.uri=http://me:***left-out***@mlflow'
    """
    program, *rest = argv
    folder, name = os.path.split(program)
    if name == "__main__.py":  # of python -m
        package = os.path.basename(folder)
        name = "howdah" if package == "cli" else f"python -m howdah.{package}"
    # Each word is masked separately: in the joined text, words after a secret would be taken for a
    # part of it.
    words = [_masked(word) for word in rest]
    shown = " ".join([name, *(word if "***" in word else shlex.quote(word) for word in words)])
    return shown[:_MOST]


def _masked(word: str) -> str:
    """A word of a command without secrets; a --set value in YAML that contains one is masked."""
    key, equals, _ = word.partition("=")
    if equals and any(map(redact.is_secret_name, _NAME.findall(word))):
        return f"{key}={redact.LEFT_OUT}"
    return redact.text(word)


def began_by() -> str:
    """The user's command that started this process, else this process's command line."""
    return os.environ.get(VARIABLE) or shown_command(sys.argv)
