"""Gloo's rendezvous for one training process, answered from two requests a mesh to the driver.

While ranks connect, each of Gloo's clients asks for every key of every peer: 2 (N - 1) addresses
and up to N - 1 host names a mesh, and Horovod makes up to four meshes of all N ranks. Answered by
the driver, those are N times as many requests there. Here the process's own agent requests from the
driver the names and the addresses of a mesh, once each, when all ranks have left theirs, and
answers its process from that.

torch.distributed's Gloo leaves one value a rank, the same for all its peers: the agent requests the
values of all ranks at once there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from howdah.jobs.net import rendezvous

Request = Callable[[str, str, bytes], tuple[int, bytes]]
"""(method, path, body) -> (status, body) of the driver."""
_PROCESS_SET = "_process_set_hash_"
_TORCH = "torch"


class _Mesh:
    """One scope of the rendezvous, as far as this process has asked for it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rank: int | None = None
        self.value = b""
        """The addresses that this process has left."""
        self.names: list[bytes | None] = []
        self.asked_names = False
        self.column: bytes | None = None
        self.whole = True
        """The addresses have the expected form; otherwise each key is requested by itself."""
        self.lock = threading.Lock()

    @property
    def width(self) -> int:
        """Bytes of one address."""
        return len(self.value) // (self.size - 1)


class Meshes:
    """Answers the requests of the world that a process is joining.

    Args:
        assignment: () -> (generation, "rank,size,local rank,local size,cross rank,cross size").
        request: makes a request to the driver; its errors are raised.
    """

    def __init__(self, assignment: Callable[[], tuple[int, str]], request: Request) -> None:
        self._assignment, self._request = assignment, request
        self._lock = threading.Lock()
        self._generation = 0
        self._meshes: dict[str, _Mesh] = {}
        self._width = 0
        """Bytes of an address in this world, by the mesh of all ranks, whose size is known."""

    def answer(self, method: str, scope: str, key: str, body: bytes) -> tuple[int, bytes]:
        """Status and body for Gloo's client."""
        generation, slot = self._assignment()
        mesh = self._mesh(generation, slot, scope)
        path = f"/rendezvous/{generation}/{scope}"
        if scope.startswith(_TORCH):
            number = key.removeprefix("rank_")
            if method != "GET" or mesh is None or number == key or not number.isdecimal():
                return self._request(method, f"{path}/{key}", body)
            return self._value(mesh, path, int(number))
        if method == "GET" and mesh is not None and mesh.size > 1:
            number = key.removeprefix("rank_")
            known = number.isdecimal() and len(number) < 10 and int(number) < mesh.size
            if known and number != key:
                return self._name(mesh, path, int(number))
            if known and mesh.whole and mesh.rank is not None and int(number) != mesh.rank:
                answer = self._addresses(mesh, path, int(number))
                if answer is not None:
                    return answer
        status, answer = self._request(method, f"{path}/{key}", body)
        if status == 200 and mesh is not None and key.isdecimal():
            if method == "PUT":
                self._left(mesh, scope, int(key), body)
            elif method == "DELETE":
                with self._lock:
                    self._meshes.pop(scope, None)
        return status, answer

    def _mesh(self, generation: int, slot: str, scope: str) -> _Mesh | None:
        with self._lock:
            if generation != self._generation:
                self._generation, self._meshes, self._width = generation, {}, 0
            mesh = self._meshes.get(scope)
            if mesh is None and slot:
                _, size, _, local_size, _, cross_size = map(int, slot.split(","))
                sizes = {"g": size, "l": local_size, "c": cross_size, "t": size}
                mesh = self._meshes[scope] = _Mesh(sizes[scope[0]])
            return mesh

    def _left(self, mesh: _Mesh, scope: str, rank: int, value: bytes) -> None:
        """This process has left its addresses: its rank in the mesh, and how long they are."""
        with self._lock, mesh.lock:
            mesh.rank, mesh.value, mesh.column = rank, value, None
            if scope == "global" and mesh.size > 1 and len(value) % (mesh.size - 1) == 0:
                self._width = mesh.width
            if _PROCESS_SET in scope and self._width and len(value) % self._width == 0:
                mesh.size = len(value) // self._width + 1  # perhaps a set of some ranks only
            cut = mesh.size > 1 and len(value) == (mesh.size - 1) * self._width > 0
            mesh.whole = cut and rank < mesh.size

    def _name(self, mesh: _Mesh, path: str, rank: int) -> tuple[int, bytes]:
        """The host name of a rank: Gloo asks once, and goes on without one that is not there."""
        with mesh.lock:
            if not mesh.asked_names:
                status, body = self._request("GET", f"{path}/names/{mesh.size}", b"")
                if status != 200:
                    return status, body
                mesh.names, mesh.asked_names = rendezvous.unpack(body), True
            name = mesh.names[rank] if rank < len(mesh.names) else None
        return (200, name) if name is not None else (404, b"")

    def _value(self, mesh: _Mesh, path: str, rank: int) -> tuple[int, bytes]:
        """What a rank has left for all its peers; unlike Horovod's names it must come."""
        with mesh.lock:
            if rank >= len(mesh.names) or mesh.names[rank] is None:
                status, body = self._request("GET", f"{path}/names/{mesh.size}", b"")
                if status != 200:
                    return status, body
                mesh.names = rendezvous.unpack(body)
            value = mesh.names[rank] if rank < len(mesh.names) else None
        return (200, value) if value is not None else (404, b"")

    def _addresses(self, mesh: _Mesh, path: str, peer: int) -> tuple[int, bytes] | None:
        """What a peer has left, as far as this rank reads it; None: it is to be asked for."""
        with mesh.lock:
            rank, width = mesh.rank, mesh.width
            if mesh.column is None:
                status, body = self._request("GET", f"{path}/column/{mesh.size}/{rank}", b"")
                if status == 409 or (status == 200 and len(body) != (mesh.size - 1) * width):
                    mesh.whole = False
                    return None
                if status != 200:
                    return status, body
                mesh.column = body
            at = (peer if peer < rank else peer - 1) * width
            own = mesh.column[at : at + width]
            length = len(mesh.value)
        at = (rank if rank < peer else rank - 1) * width
        return 200, bytes(at) + own + bytes(length - at - width)
