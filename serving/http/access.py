"""The file of the server's bearer tokens."""

from __future__ import annotations

from howdah.errors import ConfigError, StorageError
from howdah.storage import private_files

_KEY = "serve.token_file"
_SHORTEST = 16
_METRICS = b"metrics "
"""Prefix of the line of a token that may read only /metrics."""


def tokens(path: str | None, *, for_metrics: bool = False) -> list[bytes]:
    """Read the bearer tokens of a file, one a line; [] without a file.

    Args:
        for_metrics: read those that may read only /metrics, whose lines are `metrics TOKEN`.
    Raises:
        ConfigError: it cannot be read, other users may read it, or no token is for all paths.
    """
    if path is None:
        return []
    try:
        data = private_files.read(path, what="the file of tokens", where=f"{_KEY} {path}").encode()
    except StorageError as error:
        raise ConfigError(
            error.what, where=error.where, expected=error.expected, got=error.got,
            remedy=error.remedy,
        ) from None  # fmt: skip
    lines = [line.strip() for line in data.splitlines() if line.strip()]
    every = [line.removeprefix(_METRICS).strip() for line in lines]
    plain = [len(one) >= _SHORTEST and all(0x21 <= byte <= 0x7E for byte in one) for one in every]
    wrong = [number for number, is_plain in enumerate(plain, 1) if not is_plain]
    general = [one for one, line in zip(every, lines, strict=True) if one == line]
    if wrong or not general:
        raise ConfigError(
            "the file of tokens has no usable token", where=f"{_KEY} {path}",
            expected=f"lines of {_SHORTEST} or more visible ASCII characters",
            got=f"line {wrong[0]} is shorter or has other characters" if wrong
            else "tokens for metrics alone" if every else "none",
            remedy=f"python3 -c 'import secrets; print(secrets.token_hex(32))' > {path}",
        )  # fmt: skip
    if for_metrics:
        return [one for one, line in zip(every, lines, strict=True) if one != line]
    return general
