"""The driver's address, published in the run directory and signed with the job's secret.

Other users may be able to read the run directory; the secret reaches the job's containers by YARN's
localisation, readable only to their user. The published file is not secret: driver and agents
derive the key that messages are signed with (jobs/net/signing.py) by HKDF-SHA256 (RFC 5869) from
the secret and a published nonce. This only uses the standard library's HMAC, because nodes may run
another Python (`yarn.python`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import secrets
from typing import Any

from howdah import storage
from howdah.errors import NotFound
from howdah.jobs.backend import DriverAddress

_SIGNATURE, _SESSION = b"howdah seal", b"howdah session"
_NONCE_BYTES = 32


def new_nonce() -> str:
    """One driver process's nonce: 256 bits in hexadecimal."""
    return secrets.token_hex(_NONCE_BYTES)


def session_key(secret: str, nonce: str) -> str:
    """The key of one driver process: 256 bits in hexadecimal.

    Raises:
        ValueError: `new_nonce` cannot have made the nonce.
    """
    salt = bytes.fromhex(nonce)
    if len(salt) != _NONCE_BYTES:
        raise ValueError(f"a nonce of {len(salt)} bytes instead of {_NONCE_BYTES}")
    return _hkdf(bytes.fromhex(secret), salt, _SESSION).hex()


def file_path(directory: str, application: str, attempt: int) -> str:
    """Path at which an attempt's driver publishes its address.

    Args:
        directory: the run directory's `job`.
    """
    return storage.join(directory, f"driver-{application}-{attempt}.json")


def publish(
    directory: str, application: str, attempt: int, driver: DriverAddress, secret: str, nonce: str
) -> None:
    """Write the driver's address and its nonce, signed and readable to all.

    Args:
        driver: the address; its key is derived from `secret` and `nonce` and is not written.
    """
    value = {"address": driver.address, "port": driver.port, "nonce": nonce}
    path = file_path(directory, application, attempt)
    storage.write_whole(path, _signed(secret, _subject(application, attempt), value))


def read(directory: str, application: str, attempt: int, secret: str) -> DriverAddress:
    """The published address of an attempt's driver, with its key.

    Raises:
        NotFound: the driver has not published its address yet.
        ValueError, KeyError: this job's driver has not signed the file.
    """
    data = storage.read_bytes(file_path(directory, application, attempt))
    value = _verified(secret, _subject(application, attempt), data)
    return DriverAddress(value["address"], value["port"], session_key(secret, value["nonce"]))


def attempts(directory: str, application: str) -> list[int]:
    """Numbers of the attempts at an application whose drivers have published their address."""
    pattern = re.compile(re.escape(f"driver-{application}-") + r"(\d+)\.json")
    try:
        names = [entry.name for entry in storage.list_dir(directory)]
    except NotFound:
        return []
    return [int(match[1]) for name in names if (match := pattern.fullmatch(name))]


def _subject(application: str, attempt: int) -> str:
    """Text that is signed with the address, so that another attempt's file is refused."""
    return f"driver of {application}, attempt {attempt}"


def _signed(secret: str, subject: str, value: Any) -> bytes:
    text = json.dumps(value)
    return json.dumps({"value": text, "seal": _signature(secret, subject, text)}).encode()


def _verified(secret: str, subject: str, data: bytes) -> Any:
    """The value of a signed file.

    Raises:
        ValueError: it is unsigned, altered, or signed with another secret or subject.
    """
    parts = json.loads(data)
    parts = parts if isinstance(parts, dict) else {}
    text, signature = parts.get("value"), parts.get("seal")
    if not isinstance(text, str) or not isinstance(signature, str):
        raise ValueError("not a signed file")
    expected = _signature(secret, subject, text)
    if not hmac.compare_digest(signature.encode(), expected.encode()):
        raise ValueError("not signed by this job")
    return json.loads(text)


def _signature(secret: str, subject: str, text: str) -> str:
    key = _hkdf(bytes.fromhex(secret), b"", _SIGNATURE)
    return hmac.digest(key, f"{subject}\n{text}".encode(), hashlib.sha256).hex()


def _hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
    """The first 32 bytes of HKDF-SHA256 (RFC 5869): extract, and one round of expand."""
    extracted = hmac.digest(salt, secret, hashlib.sha256)
    return hmac.digest(extracted, info + b"\x01", hashlib.sha256)
