"""The driver's store for the addresses of the ranks of one world, for Horovod's Gloo and
torch.distributed.

Stock Horovod opens this store to the network and unpickles the values of some keys
(CVE-2024-10190). Here only jobs/net/wire.py leads to it, values are bytes that are never executed
or unpickled, only Gloo's own names are valid, and each generation has a separate store: a key that
a dead world left behind can never be read by the next.

Gloo requests each key of each peer separately: N (N - 1) requests per mesh, each answered with the
addresses of a peer for all N - 1 others. Agents make one request per mesh instead
(jobs/net/meshes.py): `names` and `column` answer with all that a rank needs, as soon as all ranks
have stored theirs.
"""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Collection, Sequence

KEY_LIMIT = 2**18
"""Most keys of one generation, which has some for each rank and scope."""
VALUE_LIMIT = 2**19
"""Most bytes of a value: a rank's addresses, one for each peer."""
_SCOPE = re.compile(r"(global|local_|cross_|torch)[A-Za-z0-9._-]{0,300}")
_KEY = re.compile(r"[A-Za-z0-9._:-]{1,200}")
_NAME = "rank_"
_KEY_SECONDS = 1.0
"""How long a request for one key, or for host names, waits for missing values."""
_COLUMN_SECONDS = 5.0
"""How long a request for a mesh's addresses waits until all ranks have stored theirs."""
_MISSING = 2**32 - 1
_LENGTH = struct.Struct("=I")


def valid_name(scope: str, key: str) -> bool:
    """True if Horovod's Gloo, or the store of a torch.distributed rank
    (training/comm/store_torch.py), uses such names."""
    return bool(_SCOPE.fullmatch(scope) and _KEY.fullmatch(key))


def pack(values: Sequence[bytes | None]) -> bytes:
    """Several values as one body; None stands for a missing value."""
    return b"".join(
        _LENGTH.pack(_MISSING) if value is None else _LENGTH.pack(len(value)) + value
        for value in values
    )


def unpack(body: bytes) -> list[bytes | None]:
    """The values in a body of `pack`; ValueError for any other body.

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
    """Status, content type and body for a request of one of the job's agents.

    Args:
        path: the parts of the path after the generation: SCOPE/KEY, SCOPE/names/SIZE or
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


class _Waiters:
    """Threads that wait for the same keys of a scope; the last key to be stored wakes only them."""

    def __init__(
        self, keys: Collection[str], values: Collection[str], lock: threading.Lock
    ) -> None:
        self.keys = frozenset(keys)
        self.missing = {key for key in keys if key not in values}
        self.changed = threading.Condition(lock)
        self.threads = 0


class Rendezvous:
    """The store of the newest generation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.generation = 0
        """The generation whose store is open."""
        self._scopes: dict[str, dict[str, bytes]] = {}
        self._count = 0
        self._waiters: dict[str, dict[tuple[str, int], _Waiters]] = {}

    def begin(self, generation: int) -> None:
        """Start an empty store; requests for keys of an earlier generation get no value."""
        with self._lock:
            self.generation = generation
            self._scopes, self._count = {}, 0
            for groups in self._waiters.values():
                for waiters in groups.values():
                    waiters.changed.notify_all()
            self._waiters = {}

    def put(self, generation: int, scope: str, key: str, value: bytes) -> bool:
        """Store a value; False for another generation, an invalid name, or too long a value."""
        if not valid_name(scope, key) or len(value) > VALUE_LIMIT:
            return False
        with self._lock:
            if generation != self.generation or self._count >= KEY_LIMIT:
                return False
            values = self._scopes.setdefault(scope, {})
            self._count += key not in values
            values[key] = value
            for waiters in self._waiters.get(scope, {}).values():
                waiters.missing.discard(key)
                if not waiters.missing:
                    waiters.changed.notify_all()
            return True

    def get(self, generation: int, scope: str, key: str, wait: float) -> bytes | None:
        """A value, waiting up to `wait` seconds for it; None: it is missing."""
        with self._lock:
            return self._when_present(generation, scope, (key, -1), [key], wait).get(key)

    def names(
        self, generation: int, scope: str, size: int, wait: float
    ) -> list[bytes | None] | None:
        """The host name that each rank of a mesh has stored; None for a rank that has not.

        This waits up to `wait` seconds until all have. None: another generation.
        """
        keys = [f"{_NAME}{rank}" for rank in range(size)]
        with self._lock:
            values = self._when_present(generation, scope, (_NAME, size), keys, wait)
            return [values.get(key) for key in keys] if generation == self.generation else None

    def column(
        self, generation: int, scope: str, size: int, rank: int, wait: float
    ) -> bytes | None:
        """The addresses that all other ranks of a mesh have for this rank, concatenated.

        A rank stores an address for each other rank, all of one length, in the order of the ranks
        (Gloo's rendezvous::Context::connectFullMesh), and reads only the addresses for itself from
        the others. So a mesh's addresses cross the network once, not N times.

        Args:
            size: number of ranks in the mesh, 2 or more.
            rank: the rank in the mesh.
            wait: most seconds to wait until all ranks have stored theirs.
        Returns:
            size - 1 addresses; None: some are missing, or another generation.
        Raises:
            ValueError: the values cannot be cut into size - 1 parts of one length.
        """
        keys = [str(number) for number in range(size)]
        with self._lock:
            present = self._when_present(generation, scope, ("", size), keys, wait)
            values = [present.get(key) for key in keys]
        if generation != self.generation or any(value is None for value in values):
            return None
        width, rest = divmod(len(values[rank]), size - 1)
        if rest or any(len(value) != len(values[rank]) for value in values):
            raise ValueError(f"{scope}: not addresses of {size} ranks")
        parts = []
        for number, value in enumerate(values):
            if number != rank:
                at = (rank if rank < number else rank - 1) * width
                parts.append(value[at : at + width])
        return b"".join(parts)

    def delete(self, generation: int, scope: str, key: str) -> None:
        """Remove a value, as Horovod does once all ranks have connected."""
        with self._lock:
            if generation != self.generation:
                return
            if self._scopes.get(scope, {}).pop(key, None) is not None:
                self._count -= 1
            for waiters in self._waiters.get(scope, {}).values():
                if key in waiters.keys:
                    waiters.missing.add(key)

    def _when_present(
        self, generation: int, scope: str, group: tuple[str, int], keys: list[str], wait: float
    ) -> dict[str, bytes]:
        """The values of a scope once these keys are among them, or `wait` seconds have passed, or
        another generation has begun ({}). The caller holds the lock."""
        if generation != self.generation:
            return {}
        values = self._scopes.get(scope, {})
        if wait and any(key not in values for key in keys):
            groups = self._waiters.setdefault(scope, {})
            waiters = groups.setdefault(group, _Waiters(keys, values, self._lock))
            waiters.threads += 1
            waiters.changed.wait_for(
                lambda: generation != self.generation or not waiters.missing, wait
            )
            waiters.threads -= 1
            if not waiters.threads:
                groups.pop(group, None)
        return self._scopes.get(scope, {}) if generation == self.generation else {}
