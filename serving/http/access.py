"""Who may ask the server: the file of its tokens, and when one is needed."""

from __future__ import annotations

import os
import stat

from howdah.config.options.serve import ServeSection
from howdah.errors import ConfigError, UsageError
from training.deployment.listening import is_loopback

__all__ = ["require_guarded", "tokens"]

_SHORTEST = 16
_METRICS = b"metrics "
"""Begins the line of a token that may read /metrics alone."""


def require_guarded(settings: ServeSection) -> None:
    """Refuse to listen on another address than loopback without a token.

    Raises:
        UsageError: it would.
    """
    if is_loopback(settings.host) or settings.token_file is not None or settings.open:
        return
    raise UsageError(
        "other machines could reach the server, and it would ask no one for a token",
        where="--host",
        expected="127.0.0.1, or --token-file, or --open",
        got=settings.host,
        remedy="--token-file FILE: requests need one of its tokens; --open: all who reach the port"
        " can classify",
    )


def tokens(path: str | None, *, for_metrics: bool = False) -> list[bytes]:
    """The bearer tokens of a file, one a line; [] without a file.

    Args:
        for_metrics: those that may read /metrics alone, whose lines are `metrics TOKEN`.
    Raises:
        ConfigError: it cannot be read, others may read it, or it has no token for all paths.
    """
    if path is None:
        return []
    where = f"serve.token_file {path}"
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno())
            data = file.read(65536)
    except OSError as error:
        raise ConfigError(
            "the file of tokens cannot be read", where=where, got=error.strerror,
            expected="a file of this machine",
        ) from None  # fmt: skip
    if mode.st_mode & 0o077 or not stat.S_ISREG(mode.st_mode):
        raise ConfigError(
            "the file of tokens is open to other users", where=where,
            expected="a file of mode 0600 or 0400", got=f"{stat.S_IMODE(mode.st_mode):04o}",
            remedy=f"chmod 600 {path}",
        )  # fmt: skip
    lines = [line.strip() for line in data.splitlines() if line.strip()]
    every = [line.removeprefix(_METRICS).strip() for line in lines]
    wrong = [n for n, one in enumerate(every, 1) if len(one) < _SHORTEST or not _is_plain(one)]
    found = [one for one, line in zip(every, lines, strict=True) if one == line]
    if wrong or not found:
        raise ConfigError(
            "the file of tokens has no usable token", where=where,
            expected=f"lines of {_SHORTEST} or more visible ASCII characters",
            got=f"line {wrong[0]} is shorter or has others" if wrong
            else "tokens for metrics alone" if every else "none",
            remedy=f"python3 -c 'import secrets; print(secrets.token_hex(32))' > {path}",
        )  # fmt: skip
    if for_metrics:
        return [one for one, line in zip(every, lines, strict=True) if one != line]
    return found


def _is_plain(token: bytes) -> bool:
    return all(0x21 <= byte <= 0x7E for byte in token)
