"""Looks up the user whose process has the other end of a loopback connection, in the kernel."""

from __future__ import annotations

import socket
import struct

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_NLMSG_ERROR = 2
_ENOENT = 2
_ANY_COOKIE = 2**32 - 1
_MAPPED = bytes(10) + b"\xff\xff"
_ID = struct.Struct("!HH16s16s")
"""inet_diag_sockid: source port, destination port, source address, destination address."""
_REQUEST = struct.Struct("=BBBxI")
"""inet_diag_req_v2 before its id: family, protocol, extensions, states."""
_REST = struct.Struct("=III")
"""The end of an id: interface, cookie."""
_HEADER = struct.Struct("=IHHII")
"""nlmsghdr: length, type, flags, sequence, port id."""
_ANSWER_AT = _HEADER.size + 4
"""Offset of the id in an answer, after nlmsghdr and family, state, timer, retransmissions."""
_OWNER_AT = _ANSWER_AT + _ID.size + _REST.size + 12
"""Offset of uid and inode (uint32 each) in an answer, after id, expires, rqueue and wqueue."""

Address = tuple[str, int]


def owner_of_peer(peer: Address, here: Address) -> int | None:
    """The user id of the process that holds the other end of a loopback connection.

    This makes one request to the kernel for this socket (sock_diag(7)), or searches the kernel's
    table of all sockets (proc(5)) if that is not supported.

    Args:
        peer: IPv4 address and port of the other end.
        here: address and port of our end.
    Returns:
        None if no process holds such a socket: for a connection that its process has closed the
        kernel reports user 0, whoever the user was.
    """
    try:
        entry = _by_sock_diag(peer, here)
    except OSError:
        entry = _by_table(peer, here)
    if entry is None:
        return None
    uid, inode = entry
    return uid if inode else None


def _by_sock_diag(peer: Address, here: Address) -> tuple[int, int] | None:
    """(uid, inode) of the peer's socket. OSError: the kernel does not support the request."""
    sides = [socket.inet_aton(side[0]) for side in (peer, here)]
    plain = _ID.pack(peer[1], here[1], *sides)
    # The request also matches an IPv6 socket connected to an IPv4 address, with mapped addresses.
    mapped = _ID.pack(peer[1], here[1], *(_MAPPED + side for side in sides))
    body = _REQUEST.pack(socket.AF_INET, socket.IPPROTO_TCP, 0, 2**32 - 1) + plain
    body += _REST.pack(0, _ANY_COOKIE, _ANY_COOKIE)
    header = _HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(5.0)
        kernel.connect((0, 0))  # the kernel's port, so that no process can send an answer
        kernel.send(header + body)
        answer = kernel.recv(4096)
    kind = _HEADER.unpack_from(answer)[1]
    if kind == _NLMSG_ERROR:
        (code,) = struct.unpack_from("=i", answer, _HEADER.size)
        if code == -_ENOENT:
            return None
        raise OSError(-code, "sock_diag")
    if kind != _SOCK_DIAG_BY_FAMILY or len(answer) < _OWNER_AT + 8:
        raise OSError("sock_diag gave an answer of another kind")
    # Without such a connection, the kernel reports a socket that listens on the port.
    if answer[_ANSWER_AT : _ANSWER_AT + _ID.size] not in (plain, mapped):
        return None
    return struct.unpack_from("=II", answer, _OWNER_AT)


def _by_table(peer: Address, here: Address) -> tuple[int, int] | None:
    """The same from /proc/net/tcp, which takes longer the more sockets there are."""
    end = tuple(_hex(*side) for side in (peer, here))
    # An IPv6 socket that is connected to an IPv4 address has mapped addresses.
    mapped = tuple("0000000000000000FFFF0000" + side for side in end)
    for path, sides in (("/proc/net/tcp", end), ("/proc/net/tcp6", mapped)):
        try:
            with open(path, encoding="ascii") as table:
                next(table)
                for line in table:
                    fields = line.split()
                    if (fields[1], fields[2]) == sides:
                        return int(fields[7]), int(fields[9])
        except FileNotFoundError:  # this kernel has no IPv6
            continue
    return None


def _hex(address: str, port: int) -> str:
    (number,) = struct.unpack("=I", socket.inet_aton(address))
    return f"{number:08X}:{port:04X}"
