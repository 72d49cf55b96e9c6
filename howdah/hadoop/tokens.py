"""Delegation tokens, from the credentials file that YARN gives a container.

`$HADOOP_TOKEN_FILE_LOCATION` names a file in one of Hadoop's two formats: 0 (Writable) or 1
(protobuf), as org.apache.hadoop.security.Credentials writes them.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from howdah.core import protobuf_wire
from howdah.errors import NotAuthenticated
from howdah.faults import LOGIN_REMEDY

ENVIRONMENT = "HADOOP_TOKEN_FILE_LOCATION"
HDFS_KIND = "HDFS_DELEGATION_TOKEN"
WEBHDFS_KIND = "WEBHDFS delegation"
KMS_KIND = "kms-dt"  # for the keys of encryption zones
_MAGIC = b"HDTS"


@dataclass(frozen=True)
class Token:
    """A delegation token; `service` is the address it is for ("127.0.0.1:8020", "ha-hdfs:ns")."""

    identifier: bytes
    password: bytes
    kind: str
    service: str

    def url_string(self) -> str:
        """The value of WebHDFS' parameter `delegation=`: Hadoop's Token.encodeToUrlString."""
        raw = b"".join(
            _vint(len(part)) + part
            for part in (
                self.identifier,
                self.password,
                self.kind.encode(),
                self.service.encode(),
            )
        )
        return base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii")

    @property
    def expires(self) -> float:
        """Seconds since 1970 after which it can no longer be renewed."""
        reader = _Reader(self.identifier)
        reader.take(1)  # version
        for _ in range(3):  # owner, renewer, real user
            reader.take(reader.vlong())
        reader.vlong()  # issued
        return reader.vlong() / 1000


def load(environ: Mapping[str, str] | None = None) -> list[Token]:
    """The tokens of the file that the environment names; [] if it names none.

    Raises:
        NotAuthenticated: the file is missing, or is not a credentials file.
    """
    path = (os.environ if environ is None else environ).get(ENVIRONMENT)
    if not path:
        return []
    try:
        with open(path, "rb") as file:
            return parse(file.read())
    except OSError as error:
        cause = error.strerror or str(error)
    except (ValueError, IndexError, UnicodeDecodeError) as error:
        cause = str(error)
    raise NotAuthenticated(
        f"the file that {ENVIRONMENT} names cannot be read",
        where=path,
        got=cause,
        remedy=LOGIN_REMEDY,
    )


def none_valid(
    held: Sequence[Token], ours: Sequence[Token], *, where: str, expected: str
) -> NotAuthenticated:
    """The error for a cluster of which no token is valid.

    Args:
        held: all tokens of the file.
        ours: those of the cluster, which have expired.
        expected: services of the cluster.
    """
    services = ", ".join(sorted({token.service for token in held})) or "none"
    return NotAuthenticated(
        "no delegation token for this cluster",
        where=where,
        expected=expected,
        got="expired tokens" if ours else f"tokens for: {services}",
        remedy=LOGIN_REMEDY,
    )


def parse(data: bytes) -> list[Token]:
    """The tokens of a credentials file; ValueError if it is not one."""
    if data[:4] != _MAGIC or len(data) < 5:
        raise ValueError("it is not a credentials file of Hadoop")
    if data[4] == 0:
        return _parse_writable(_Reader(data[5:]))
    if data[4] == 1:
        return _parse_protobuf(data[5:])
    raise ValueError(f"credentials format {data[4]} is not known (0 and 1 are)")


def _parse_writable(reader: _Reader) -> list[Token]:
    tokens = []
    for _ in range(reader.vlong()):
        reader.take(reader.vlong())  # alias
        identifier, password, kind, service = (reader.take(reader.vlong()) for _ in range(4))
        tokens.append(Token(identifier, password, kind.decode(), service.decode()))
    return tokens


def _parse_protobuf(data: bytes) -> list[Token]:
    """CredentialsProto {1: CredentialsKVProto {1: alias, 2: TokenProto {1..4}}}, delimited."""
    tokens = []
    message, _ = protobuf_wire.read_sized(data, 0)
    for number, value in protobuf_wire.bytes_fields(message):
        if number != 1:
            continue
        token = dict(protobuf_wire.bytes_fields(value)).get(2)
        if token:
            parts = dict(protobuf_wire.bytes_fields(token))
            identifier, password, kind, service = (parts.get(n, b"") for n in (1, 2, 3, 4))
            tokens.append(Token(identifier, password, kind.decode(), service.decode()))
    return tokens


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, count: int) -> bytes:
        if count < 0 or count > len(self._data) - self._at:
            raise ValueError("the credentials file ends too early")
        self._at += count
        return self._data[self._at - count : self._at]

    def vlong(self) -> int:
        """Hadoop's WritableUtils.readVLong."""
        first = int.from_bytes(self.take(1), "big", signed=True)
        if first >= -112:
            return first
        negative = first < -120
        value = int.from_bytes(self.take(-(first + 120) if negative else -(first + 112)), "big")
        return ~value if negative else value


def _vint(value: int) -> bytes:
    """Hadoop's WritableUtils.writeVInt of a count (never negative)."""
    if value <= 127:
        return bytes([value])
    raw = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return (-112 - len(raw)).to_bytes(1, "big", signed=True) + raw
