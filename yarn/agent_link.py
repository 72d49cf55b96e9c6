"""An agent's two conversations with its driver: orders come down, events and states go up.

Both are repeated until the other side has them: orders are numbered by the driver and events by
the agent, so that a lost answer costs time and nothing else. Either counts as a sign of life.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from howdah.errors import ClusterError
from yarn.wire import Client, Refused

__all__ = ["DriverLink"]

_POLL_SECONDS = 2.0
"""How long the driver holds a question for orders while it has none."""
_REPORT_SECONDS = 1.0
"""Between two reports without events, until the driver says otherwise."""
_CALL_SECONDS = 5.0
_RETRY_SECONDS = 0.5
_BATCH = 200
"""Events of one report at the most."""
_COALESCED = ("beat", "step", "data")
"""Messages of which the newest says it all: sent as state, not one by one."""


class DriverLink:
    """The agent's end.

    Args:
        client: the signed way to the driver.
        me: this container's name.
        order: called with each order, once, in their sequence; from a thread of this object.
        lost: called once when the driver has been silent for `patience` seconds, or does not know
            us any more.
        patience: seconds.
    """

    def __init__(
        self,
        client: Client,
        me: str,
        *,
        order: Callable[[dict[str, Any]], None],
        lost: Callable[[], None],
        patience: float,
    ) -> None:
        self._client, self._me = client, me
        self._order, self._on_lost, self._patience = order, lost, patience
        self._changed = threading.Condition()
        self._events: list[tuple[int, dict[str, Any]]] = []
        self._next_event = 1
        self._state: dict[str, Any] = {"process": 0}
        self._beat_time = 0.0
        self._contact = time.monotonic()
        self._lost_told = False

    def register(self, node: str, facts: dict[str, Any]) -> str | None:
        """Tell the driver that we are here; the application's id, or None if we have no place.

        Raises:
            ClusterError: it cannot be reached within the patience, or it refuses this container
                for what its node lacks.
        """
        deadline = time.monotonic() + self._patience
        while True:
            try:
                answer = self._client.call(
                    "/register", {"agent": self._me, "node": node, "facts": facts}, _CALL_SECONDS
                )
                break
            except Refused:
                raise
            except ClusterError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY_SECONDS)
        if answer.get("refusal") is not None:
            raise ClusterError(**answer["refusal"])
        if not answer["welcome"]:
            return None
        self._contact = time.monotonic()
        for name, target in (("orders", self._poll), ("reports", self._report)):
            threading.Thread(target=target, name=name, daemon=True).start()
        return answer["application"]

    def event(self, event: dict[str, Any]) -> None:
        """Tell the driver something, once, after what was told before."""
        with self._changed:
            self._events.append((self._next_event, event))
            self._next_event += 1
            self._changed.notify_all()

    def heard(self, process: int, message: dict[str, Any]) -> None:
        """Pass on a message of a training process."""
        with self._changed:
            self._turn_to(process)
            if message["type"] in _COALESCED:
                self._state[message["type"]] = message
                if message["type"] == "beat":
                    self._beat_time = time.monotonic()
                return
        self.event({**message, "process": process})

    def sampled(self, process: int, kernel: dict[str, Any] | None) -> None:
        """What /proc says of the process now."""
        with self._changed:
            self._turn_to(process)
            self._state["kernel"] = kernel

    def _turn_to(self, process: int) -> None:
        """A new process: what the old one said is no news of it."""
        if self._state["process"] != process:
            self._state = {"process": process}
            self._beat_time = time.monotonic()

    def flush(self, seconds: float) -> None:
        """Wait until the driver has all events, for so long at the most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._events or self._lost_told, seconds)

    def _poll(self) -> None:
        have = 0
        while True:
            answer = self._call("/poll", {"agent": self._me, "have": have, "wait": _POLL_SECONDS})
            for number, order in answer["orders"] if answer else []:
                if number > have:
                    have = number
                    self._order(order)

    def _report(self) -> None:
        pause = _REPORT_SECONDS
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._events, pause)
                batch = self._events[:_BATCH]
                state = dict(self._state)
                if "beat" in state:
                    state["beat_age"] = time.monotonic() - self._beat_time
            message = {"agent": self._me, "events": batch, "state": state}
            answer = self._call("/report", message)
            if answer is not None:
                pause = float(answer.get("again", _REPORT_SECONDS))
            if answer is None or not batch:
                continue
            with self._changed:
                self._events = [one for one in self._events if one[0] > batch[-1][0]]
                self._changed.notify_all()

    def _call(self, path: str, message: dict[str, Any]) -> dict[str, Any] | None:
        """The driver's answer; None (after a pause) where there was none."""
        refused = False
        try:
            answer = self._client.call(path, message, _CALL_SECONDS)
            self._contact = time.monotonic()
            return answer
        except Refused:
            refused = True  # another driver, or one that has given us up
        except ClusterError:
            pass
        if refused or time.monotonic() - self._contact > self._patience:
            with self._changed:
                first, self._lost_told = not self._lost_told, True
                self._changed.notify_all()
            if first:
                self._on_lost()
        time.sleep(_RETRY_SECONDS)
        return None
