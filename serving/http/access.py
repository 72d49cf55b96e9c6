"""The file of the server's bearer tokens."""

from __future__ import annotations

from howdah.errors import ConfigError, StorageError
from howdah.storage import private_files

_KEY = "serve.token_file"
_SHORTEST = 16
_METRICS = b"metrics "
"""Prefix of the line of a token that may read only /metrics."""


def tokens(path: str | None) -> list[bytes]:
    """Read the bearer tokens of a file that are for all paths; [] without a file.

    Raises:
        ConfigError: see `read`.
    """
    return [] if path is None else read(path)[0]


def read(path: str) -> tuple[list[bytes], list[bytes]]:
    """Read the bearer tokens of a file, one a line, as (those for all paths, those for /metrics).

    The latter stand in lines `metrics TOKEN`.

    Raises:
        ConfigError: it cannot be read, other users may read it, or no token is for all paths.
    """
    try:
        data = private_files.read(path, what="the file of tokens", where=f"{_KEY} {path}").encode()
    except StorageError as error:
        raise ConfigError(
            error.what, where=error.where, expected=error.expected, got=error.got,
            remedy=error.remedy,
        ) from None  # fmt: skip
    general: list[bytes] = []
    for_metrics: list[bytes] = []
    wrong = None
    for number, line in enumerate(data.splitlines(), 1):
        if not (line := line.strip()):
            continue
        token = line.removeprefix(_METRICS).strip()
        (general if token == line else for_metrics).append(token)
        is_plain = len(token) >= _SHORTEST and all(0x21 <= byte <= 0x7E for byte in token)
        if wrong is None and not is_plain:
            wrong = f"line {number} is shorter or has other characters"
    if wrong is not None or not general:
        raise ConfigError(
            "the file of tokens has no usable token", where=f"{_KEY} {path}",
            expected=f"lines of {_SHORTEST} or more visible ASCII characters",
            got=wrong or ("tokens for metrics alone" if for_metrics else "none"),
            remedy=f"python3 -c 'import secrets; print(secrets.token_hex(32))' > {path}",
        )  # fmt: skip
    return general, for_metrics
