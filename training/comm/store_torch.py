"""torch.distributed's store for the ranks of a job: the job's rendezvous through the rank's agent.

torch's TCPStore listens on all interfaces without authentication. This store does not open a port:
it sends plain HTTP to the agent on loopback (jobs/net/relay.py), which signs the requests to the
job's driver and answers for the generation of this process's world.
"""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Sequence
from datetime import timedelta

import torch.distributed as dist

_REQUEST_SECONDS = 15.0
"""Timeout of a request; the agent waits up to 10 s for the driver."""
_PAUSE_SECONDS = 0.05
"""Pause before a missing key is requested again; the driver has already waited a second for it."""
_OF_EACH_RANK = re.compile(r"(.*//cpu//.*)/(\d+)")
"""Gloo's keys (".../0//cpu//0/RANK"): each rank sets one and reads those of all others."""


class StoreClosed(RuntimeError):
    """The world that the store belongs to is over, or a key was not set in time."""


class RelayStore(dist.Store):
    """The store of one world.

    torch also calls it from C++ threads; its only state are values that `wait` has received.

    Args:
        address: host:port of the agent's relay.
    """

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address
        self._values: dict[str, bytes] = {}

    def set(self, key: str, value: bytes | str) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        deadline = time.monotonic() + _REQUEST_SECONDS
        while True:
            status, _ = self._request("PUT", key, data)
            if status == 200:
                return
            if status != 503 or time.monotonic() > deadline:
                raise StoreClosed(f"the job's rendezvous does not accept {key}: status {status}")
            time.sleep(_PAUSE_SECONDS)

    def get(self, key: str) -> bytes:
        """The value of a key; waits for it as long as this world lives."""
        if key not in self._values:
            self._await(key, None)
        return self._values.pop(key)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return once all keys are set."""
        deadline = None if timeout is None else time.monotonic() + timeout.total_seconds()
        for key in keys:
            self._await(key, deadline)

    def check(self, keys: Sequence[str]) -> bool:
        """True if all keys are set. NCCL's watchdog calls it, even when the world is over."""
        return all(self._request("GET", key)[0] == 200 for key in keys)

    def delete_key(self, key: str) -> bool:
        return self._request("DELETE", key)[0] == 200

    def set_timeout(self, timeout: timedelta) -> None:
        """Do nothing: `wait` gets a time limit, and `get` ends with the world."""

    def add(self, key: str, amount: int) -> int:
        """Raise NotImplementedError: Gloo and NCCL do not call it."""
        raise NotImplementedError(f"the job's rendezvous does not count ({key}, {amount})")

    def _await(self, key: str, deadline: float | None) -> None:
        while True:
            status, value = self._request("GET", key)
            if status == 200:
                self._values[key] = value
                return
            if status not in (404, 503):
                raise StoreClosed(f"this world is over: status {status} for {key}")
            if deadline is not None and time.monotonic() > deadline:
                raise StoreClosed(f"not set by another rank in time: {key}")
            time.sleep(_PAUSE_SECONDS)

    def _request(self, method: str, key: str, body: bytes | None = None) -> tuple[int, bytes]:
        """(status, body); the status is 503 if the agent does not answer."""
        connection = http.client.HTTPConnection(self._address, timeout=_REQUEST_SECONDS)
        try:
            connection.request(method, f"/{_name(key)}", body)
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            return 503, b""  # the connection may have been shut because a rank was lost
        finally:
            connection.close()


def _name(key: str) -> str:
    """A key's scope and name in the job's rendezvous.

    >>> _name("0//cpu//0/3"), _name("0//cuda//0")
    ('torch0-2f--2f-cpu-2f--2f-0/rank_3', 'torch/0-2f--2f-cuda-2f--2f-0')
    """
    of_rank = _OF_EACH_RANK.fullmatch(key)
    if of_rank:
        return f"torch{_word(of_rank[1])}/rank_{of_rank[2]}"
    return f"torch/{_word(key)}"


def _word(text: str) -> str:
    """The text in characters that the rendezvous accepts; different texts stay different."""
    return re.sub(r"[^A-Za-z0-9._]", lambda match: f"-{ord(match[0]):02x}-", text)
