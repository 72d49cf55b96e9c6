"""The driver's store in which the ranks of one world leave their addresses, for Horovod's Gloo and
for torch.distributed.

Stock Horovod keeps this store open to the network and unpickles what some of its keys hold
(CVE-2024-10190). Here it is reached through jobs/net/wire.py alone, values are bytes that are never
executed or unpickled, only Gloo's own names are taken, and each generation has a store of its own:
a key that a dead world left behind can never be read by the next.

Gloo asks for each key of each peer by itself: N (N - 1) requests a mesh, each answered with the
addresses that a peer has for all N - 1 others. Agents ask once a mesh instead (jobs/net/meshes.py):
`names` and `column` answer with all that a rank needs, as soon as all ranks have left theirs.
"""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Collection, Sequence

KEY_LIMIT = 2**18
"""Keys of one generation: some for each rank and scope."""
VALUE_LIMIT = 2**19
"""Bytes of a value: a rank's addresses, one for each peer."""
_SCOPE = re.compile(r"(global|local_|cross_|torch)[A-Za-z0-9._-]{0,300}")
_KEY = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_NAME = "rank_"
_KEY_SECONDS = 1.0
"""How long a request for one key, or for host names, waits for what is not there yet."""
_COLUMN_SECONDS = 5.0
"""How long a request for a mesh's addresses waits until all ranks have left theirs."""
_MISSING = 2**32 - 1
_LENGTH = struct.Struct("=I")


def valid_name(scope: str, key: str) -> bool:
    """Whether Gloo, as Horovod uses it, or a torch.distributed rank's store
    (training/comm/store_torch.py) asks for such a name."""
    return bool(_SCOPE.fullmatch(scope) and _KEY.fullmatch(key))


def pack(values: Sequence[bytes | None]) -> bytes:
    """Several values as one body; None for one that is not there."""
    return b"".join(
        _LENGTH.pack(_MISSING) if value is None else _LENGTH.pack(len(value)) + value
        for value in values
    )


def unpack(body: bytes) -> list[bytes | None]:
    """What `pack` was given; ValueError for anything else.

    >>> unpack(pack([b"one", None, b""]))
    [b'one', None, b'']
    """
    values: list[bytes | None] = []
    at = 0
    while at < len(body):
        if at + _LENGTH.size > len(body):
            raise ValueError("cut short")
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        if length == _MISSING:
            values.append(None)
            continue
        if at + length > len(body):
            raise ValueError("cut short")
        values.append(body[at : at + length])
        at += length
    return values


def answer(
    store: Rendezvous, method: str, generation: int, path: Sequence[str], body: bytes
) -> tuple[int, str, bytes]:
    """Status, content type and body for a request of one of the job's own agents.

    Args:
        path: the parts of the path behind the generation: SCOPE/KEY, SCOPE/names/SIZE or
            SCOPE/column/SIZE/RANK.
    """
    kind = "application/octet-stream"
    if generation != store.generation:
        return 410, kind, b""
    scope, key, *numbers = path
    if numbers:
        if method != "GET" or not all(n.isdecimal() and len(n) < 6 for n in numbers):
            return 404, kind, b""
        try:
            value = _of_mesh(store, generation, scope, key, [int(number) for number in numbers])
        except ValueError:
            return 409, kind, b""
    elif method == "GET":
        value = store.get(generation, scope, key, _KEY_SECONDS)
    elif method == "PUT":
        return (200 if store.put(generation, scope, key, body) else 403), kind, b""
    else:
        store.delete(generation, scope, key)
        return 200, kind, b""
    if value is not None:
        return 200, kind, value
    return (404 if generation == store.generation else 410), kind, b""


def _of_mesh(
    store: Rendezvous, generation: int, scope: str, what: str, numbers: list[int]
) -> bytes | None:
    if what == "names" and len(numbers) == 1:
        names = store.names(generation, scope, numbers[0], _KEY_SECONDS)
        return None if names is None else pack(names)
    if what == "column" and len(numbers) == 2 and numbers[1] < numbers[0] > 1:
        return store.column(generation, scope, *numbers, _COLUMN_SECONDS)
    return None


class _Wanted:
    """Keys of a scope for which threads wait together. The last one to be put wakes only these."""

    def __init__(self, keys: Collection[str], there: Collection[str], lock: threading.Lock) -> None:
        self.keys = frozenset(keys)
        self.missing = {key for key in keys if key not in there}
        self.changed = threading.Condition(lock)
        self.threads = 0


class Rendezvous:
    """The stores of the generations; only the newest one is kept."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.generation = 0
        """The one whose store is open."""
        self._scopes: dict[str, dict[str, bytes]] = {}
        self._count = 0
        self._wanted: dict[str, dict[tuple[str, int], _Wanted]] = {}

    def begin(self, generation: int) -> None:
        """Start an empty store; requests for keys of an earlier one get nothing."""
        with self._lock:
            self.generation = generation
            self._scopes, self._count = {}, 0
            for groups in self._wanted.values():
                for wanted in groups.values():
                    wanted.changed.notify_all()
            self._wanted = {}

    def put(self, generation: int, scope: str, key: str, value: bytes) -> bool:
        """Leave a value; False for another generation, an invalid name, or a value that is too
        long."""
        if not valid_name(scope, key) or len(value) > VALUE_LIMIT:
            return False
        with self._lock:
            if generation != self.generation or self._count >= KEY_LIMIT:
                return False
            values = self._scopes.setdefault(scope, {})
            self._count += key not in values
            values[key] = value
            for wanted in self._wanted.get(scope, {}).values():
                wanted.missing.discard(key)
                if not wanted.missing:
                    wanted.changed.notify_all()
            return True

    def get(self, generation: int, scope: str, key: str, wait: float) -> bytes | None:
        """A value; waits for it up to `wait` seconds. None: not there."""
        with self._lock:
            return self._when_there(generation, scope, (key, -1), [key], wait).get(key)

    def names(
        self, generation: int, scope: str, size: int, wait: float
    ) -> list[bytes | None] | None:
        """The host name that each rank of a mesh has left; None for a rank that has not.

        Waits up to `wait` seconds until all have. None: another generation.
        """
        keys = [f"{_NAME}{rank}" for rank in range(size)]
        with self._lock:
            values = self._when_there(generation, scope, (_NAME, size), keys, wait)
            return [values.get(key) for key in keys] if generation == self.generation else None

    def column(
        self, generation: int, scope: str, size: int, rank: int, wait: float
    ) -> bytes | None:
        """The addresses that all other ranks of a mesh have for this rank, one after the other.

        A rank leaves an address for each other rank, all of one length, one after the other in the
        order of the ranks (Gloo's rendezvous::Context::connectFullMesh), and reads its own alone
        of what the others have left. So a mesh's addresses cross the network once, not N times.

        Args:
            size: ranks of the mesh, 2 or more.
            rank: in the mesh.
            wait: seconds, at the most, until all ranks have left theirs.
        Returns:
            size - 1 addresses; None: not all are there, or another generation.
        Raises:
            ValueError: what the ranks have left cannot be cut into size - 1 parts of one length.
        """
        keys = [str(number) for number in range(size)]
        with self._lock:
            values = self._when_there(generation, scope, ("", size), keys, wait)
            found = [values.get(key) for key in keys]
        if generation != self.generation or any(value is None for value in found):
            return None
        width, rest = divmod(len(found[rank]), size - 1)
        if rest or any(len(value) != len(found[rank]) for value in found):
            raise ValueError(f"{scope}: not addresses of {size} ranks")
        parts = []
        for number, value in enumerate(found):
            if number != rank:
                at = (rank if rank < number else rank - 1) * width
                parts.append(value[at : at + width])
        return b"".join(parts)

    def delete(self, generation: int, scope: str, key: str) -> None:
        """Take a value away: Horovod does so once all have connected."""
        with self._lock:
            if generation != self.generation:
                return
            if self._scopes.get(scope, {}).pop(key, None) is not None:
                self._count -= 1
            for wanted in self._wanted.get(scope, {}).values():
                if key in wanted.keys:
                    wanted.missing.add(key)

    def _when_there(
        self, generation: int, scope: str, group: tuple[str, int], keys: list[str], wait: float
    ) -> dict[str, bytes]:
        """The values of a scope once these keys are among them, or `wait` seconds have passed, or
        another generation has begun ({}). The lock is held."""
        if generation != self.generation:
            return {}
        there = self._scopes.get(scope, {})
        if wait and any(key not in there for key in keys):
            groups = self._wanted.setdefault(scope, {})
            wanted = groups.setdefault(group, _Wanted(keys, there, self._lock))
            wanted.threads += 1
            wanted.changed.wait_for(
                lambda: generation != self.generation or not wanted.missing, wait
            )
            wanted.threads -= 1
            if not wanted.threads:
                groups.pop(group, None)
        return self._scopes.get(scope, {}) if generation == self.generation else {}
