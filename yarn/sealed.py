"""Small secrets in files that others may read: only who holds the submission's secret opens them.

The driver's address and key reach the agents through the run directory, which may be readable to
many; the secret itself reaches the job's containers by YARN's localisation, readable to its user.
HMAC-SHA256 as a stream cipher and, with a key of its own, as the seal: nothing but the standard
library is on every node.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from typing import Any

__all__ = ["new_secret", "open_sealed", "seal"]


def new_secret() -> str:
    """256 bits, as hexadecimal."""
    return secrets.token_hex(32)


def seal(secret: str, about: str, value: Any) -> bytes:
    """`value` (JSON) for those who hold the secret.

    Args:
        about: what it is; opened as anything else it is refused.
    """
    nonce = secrets.token_bytes(16)
    plain = json.dumps(value).encode()
    data = _mixed(secret, nonce, plain)
    parts = {"nonce": nonce, "data": data, "seal": _seal(secret, about, nonce, data)}
    return json.dumps({name: part.hex() for name, part in parts.items()}).encode()


def open_sealed(secret: str, about: str, text: bytes) -> Any:
    """What was sealed with this secret and about this.

    Raises:
        ValueError: sealed by somebody else, altered, or about something else.
    """
    parts = json.loads(text)
    if not isinstance(parts, dict):
        raise ValueError("nothing that was sealed")
    try:
        nonce, data, mark = (bytes.fromhex(parts[name]) for name in ("nonce", "data", "seal"))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError("nothing that was sealed") from error
    if not hmac.compare_digest(mark, _seal(secret, about, nonce, data)):
        raise ValueError("not sealed by this job")
    return json.loads(_mixed(secret, nonce, data))


def _seal(secret: str, about: str, nonce: bytes, data: bytes) -> bytes:
    head = f"seal\n{about}\n".encode()
    return hmac.digest(bytes.fromhex(secret), head + nonce + data, hashlib.sha256)


def _mixed(secret: str, nonce: bytes, data: bytes) -> bytes:
    """data XOR the secret's stream for this nonce: the same again gives it back."""
    stream = b"".join(
        hmac.digest(
            bytes.fromhex(secret), b"stream\n" + nonce + block.to_bytes(8, "big"), hashlib.sha256
        )
        for block in range(-(-len(data) // 32))
    )
    return bytes(a ^ b for a, b in zip(data, stream, strict=False))
