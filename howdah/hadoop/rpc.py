"""Knock at a NameNode: does it answer, and how does it want to be spoken to.

The first exchange of Hadoop's RPC (version 9), by hand: a client that negotiates is told which
ways of authentication there are. It needs no credentials, takes a few milliseconds and, unlike
a client with the wrong settings, cannot hang.
"""

from __future__ import annotations

import os
import socket
import struct

from howdah.varint import read_varint

_NEGOTIATE_SASL = 0xDF  # AuthProtocol.SASL, -33
_CALL_SASL = 65  # call id -33, zigzag


def auth_methods(host: str, port: int, timeout: float = 10.0) -> list[str]:
    """What a NameNode offers: ["SIMPLE"], or ["TOKEN", "KERBEROS"] of a secure cluster.

    Raises:
        OSError: nobody listens, no answer within `timeout` seconds, or the answer is not Hadoop's.
    """
    with socket.create_connection((host, port), timeout=timeout) as connection:
        header = b"hrpc" + bytes([9, 0, _NEGOTIATE_SASL])
        # RpcRequestHeaderProto: rpcKind 2, rpcOp 0, callId -33, clientId, retryCount -1
        client = os.urandom(16)
        request = bytes([0x08, 2, 0x10, 0, 0x18, _CALL_SASL, 0x22, 16]) + client + bytes([0x28, 1])
        sasl = bytes([0x10, 1])  # RpcSaslProto: state NEGOTIATE
        body = bytes([len(request)]) + request + bytes([len(sasl)]) + sasl
        connection.sendall(header + struct.pack(">I", len(body)) + body)
        (length,) = struct.unpack(">I", _exactly(connection, 4))
        if length > 1 << 20:  # "HTTP" read as a length: another protocol listens there
            raise OSError("the answer is not Hadoop's RPC")
        answer = _exactly(connection, length)
    try:
        return _methods(answer)
    except (IndexError, ValueError):
        raise OSError("the answer is not Hadoop's RPC") from None


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionResetError("the connection was closed before an answer came")
        data += part
    return data


def _methods(answer: bytes) -> list[str]:
    """`method` of each RpcSaslProto.auths, after the RpcResponseHeaderProto."""
    length, at = read_varint(answer, 0)
    at += length
    length, at = read_varint(answer, at)
    found = []
    for number, auth in _parts(answer[at : at + length]):
        if number == 4:
            found += [value.decode("ascii") for field, value in _parts(auth) if field == 1]
    return found


def _parts(data: bytes):
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        value, at = read_varint(data, at)
        if key & 7 == 2:
            yield key >> 3, data[at : at + value]
            at += value
