"""Who may ask the server: the file of its tokens."""

from __future__ import annotations

from howdah import private_files
from howdah.errors import ConfigError, StorageError

__all__ = ["tokens"]

_KEY = "serve.token_file"
_SHORTEST = 16


def tokens(path: str | None) -> list[bytes]:
    """The bearer tokens of a file, one a line; [] without a file.

    Raises:
        ConfigError: it cannot be read, others may read it, or it has no token.
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
    found = [line.strip() for line in data.splitlines() if line.strip()]
    wrong = [n for n, one in enumerate(found, 1) if len(one) < _SHORTEST or not _is_plain(one)]
    if wrong or not found:
        raise ConfigError(
            "the file of tokens has no usable token", where=f"{_KEY} {path}",
            expected=f"lines of {_SHORTEST} or more visible ASCII characters",
            got=f"line {wrong[0]} is shorter or has others" if wrong else "none",
            remedy=f"python3 -c 'import secrets; print(secrets.token_hex(32))' > {path}",
        )  # fmt: skip
    return found


def _is_plain(token: bytes) -> bool:
    return all(0x21 <= byte <= 0x7E for byte in token)
