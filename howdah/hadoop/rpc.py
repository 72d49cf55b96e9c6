"""Probe which authentication methods a NameNode accepts, and whether it answers at all.

The first exchange of Hadoop's RPC (version 9): a client that asks to negotiate gets the list of
authentication methods. It needs no credentials, takes a few milliseconds and, unlike a client with
the wrong settings, cannot hang.
"""

from __future__ import annotations

import os
import socket
import struct

from howdah.core.protobuf_wire import bytes_field, bytes_fields, read_sized, varint_field

_NEGOTIATE_SASL = 0xDF  # AuthProtocol.SASL, -33
_CALL_SASL = 65  # call id -33, zigzag


def auth_methods(host: str, port: int, timeout: float = 10.0) -> list[str]:
    """The methods a NameNode accepts: ["SIMPLE"], or ["TOKEN", "KERBEROS"] of a secure cluster.

    Raises:
        OSError: the port is closed, no answer within `timeout` seconds, or it is not Hadoop's RPC.
    """
    with socket.create_connection((host, port), timeout=timeout) as connection:
        header = b"hrpc" + bytes([9, 0, _NEGOTIATE_SASL])
        # RpcRequestHeaderProto: rpcKind 2, rpcOp 0, callId -33, clientId, retryCount -1 (zigzag 1)
        numbers = varint_field(1, 2) + varint_field(2, 0) + varint_field(3, _CALL_SASL)
        request = numbers + bytes_field(4, os.urandom(16)) + varint_field(5, 1)
        sasl = varint_field(2, 1)  # RpcSaslProto: state NEGOTIATE
        body = bytes([len(request)]) + request + bytes([len(sasl)]) + sasl
        connection.sendall(header + struct.pack(">I", len(body)) + body)
        (length,) = struct.unpack(">I", _exactly(connection, 4))
        if length > 1 << 20:  # "HTTP" read as a length: another protocol listens there
            raise OSError("the answer is not Hadoop's RPC")
        answer = _exactly(connection, length)
    try:
        return _methods(answer)
    except ValueError:
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
    _, at = read_sized(answer, 0)
    message, _ = read_sized(answer, at)
    methods = []
    for number, auth in bytes_fields(message):
        if number == 4:
            methods += [value.decode("ascii") for field, value in bytes_fields(auth) if field == 1]
    return methods
