"""Gloo's rendezvous for one training process, answered with two requests per mesh to the driver.

While ranks connect, each of Gloo's clients requests every key of every peer: 2 (N - 1) addresses
and up to N - 1 host names per mesh, and Horovod makes up to four meshes of all N ranks. The driver
would get N times that. Instead, each process's agent requests the names and the addresses of a mesh
from the driver once, which answers when all ranks have stored theirs, and answers its process from
these.

torch.distributed's Gloo stores one value per rank, the same for all its peers: the agent requests
the values of all ranks at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from howdah.jobs.net import rendezvous

SendRequest = Callable[[str, str, bytes], tuple[int, bytes]]
"""(method, path, body) -> (status, body) from the driver."""
_PROCESS_SET = "_process_set_hash_"
_TORCH = "torch"


class _Mesh:
    """One scope of the rendezvous, as far as this process has requested it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rank: int | None = None
        self.value = b""
        """The addresses that this process has stored."""
        self.names: list[bytes | None] | None = None
        """What each rank has stored under its name; None: not requested yet."""
        self.column: bytes | None = None
        self.whole = True
        """True if the addresses have the expected form; otherwise each key is requested alone."""
        self.lock = threading.Lock()

    @property
    def width(self) -> int:
        """Length of one address in bytes."""
        return len(self.value) // (self.size - 1)


class Meshes:
    """Answers the requests of the world that a process is joining.

    Args:
        assignment: () -> (generation, "rank,size,local rank,local size,cross rank,cross size").
        request: makes a request to the driver; its errors are passed on.
    """

    def __init__(self, assignment: Callable[[], tuple[int, str]], request: SendRequest) -> None:
        self._assignment, self._request = assignment, request
        self._lock = threading.Lock()
        self._generation = 0
        self._meshes: dict[str, _Mesh] = {}
        self._width = 0
        """Length of an address in this world, from the mesh of all ranks, whose size is known."""

    def answer(self, method: str, scope: str, key: str, body: bytes) -> tuple[int, bytes]:
        """Status and body for Gloo's client."""
        generation, slot = self._assignment()
        mesh = self._mesh(generation, slot, scope)
        path = f"/rendezvous/{generation}/{scope}"
        if scope.startswith(_TORCH):
            number = key.removeprefix("rank_")
            if method != "GET" or mesh is None or number == key or not number.isdecimal():
                return self._request(method, f"{path}/{key}", body)
            return self._named(mesh, path, int(number), again=True)
        if method == "GET" and mesh is not None and mesh.size > 1:
            number = key.removeprefix("rank_")
            is_rank = number.isdecimal() and len(number) < 10 and int(number) < mesh.size
            if is_rank and number != key:
                return self._named(mesh, path, int(number), again=False)
            if is_rank and mesh.whole and mesh.rank is not None and int(number) != mesh.rank:
                answer = self._addresses(mesh, path, int(number))
                if answer is not None:
                    return answer
        status, answer = self._request(method, f"{path}/{key}", body)
        if status == 200 and mesh is not None and key.isdecimal():
            if method == "PUT":
                self._stored(mesh, scope, int(key), body)
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

    def _stored(self, mesh: _Mesh, scope: str, rank: int, value: bytes) -> None:
        """Record the rank in the mesh and the addresses' length once this process stored them."""
        with self._lock, mesh.lock:
            mesh.rank, mesh.value, mesh.column = rank, value, None
            if scope == "global" and mesh.size > 1 and len(value) % (mesh.size - 1) == 0:
                self._width = mesh.width
            if _PROCESS_SET in scope and self._width and len(value) % self._width == 0:
                mesh.size = len(value) // self._width + 1  # the set may have only some ranks
            cut = mesh.size > 1 and len(value) == (mesh.size - 1) * self._width > 0
            mesh.whole = cut and rank < mesh.size

    def _named(self, mesh: _Mesh, path: str, rank: int, *, again: bool) -> tuple[int, bytes]:
        """What a rank has stored under its name, for all of its peers.

        Args:
            again: request a missing value again: torch's ranks cannot do without it. Gloo requests
                a host name once, and goes on without a missing one.
        """
        with mesh.lock:
            value = _at(mesh.names, rank)
            if mesh.names is None or (again and value is None):
                status, body = self._request("GET", f"{path}/names/{mesh.size}", b"")
                if status != 200:
                    return status, body
                mesh.names = rendezvous.unpack(body)
                value = _at(mesh.names, rank)
        return (200, value) if value is not None else (404, b"")

    def _addresses(self, mesh: _Mesh, path: str, peer: int) -> tuple[int, bytes] | None:
        """A peer's addresses, as far as this rank reads them; None: the driver must answer."""
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
            address = mesh.column[at : at + width]
            length = len(mesh.value)
        at = (rank if rank < peer else rank - 1) * width
        return 200, bytes(at) + address + bytes(length - at - width)


def _at(values: list[bytes | None] | None, rank: int) -> bytes | None:
    return values[rank] if values is not None and rank < len(values) else None
