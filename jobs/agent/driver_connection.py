"""An agent's connection with its driver: it polls for orders, and reports events and state.

Both are repeated until the other side confirms them: the driver numbers orders and the agent
numbers events, so that a lost answer costs time and nothing else. Any answer, to a poll or a
report, is contact.

Only answers with the driver's signature count; any other server at its address counts as silence.
A report is bounded in bytes, and long texts in it are cut: a message that the driver refuses for
its size would be sent again for ever.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from howdah.core import shorten, threads
from howdah.errors import ClusterError
from howdah.jobs.net.wire import Client, Refused, TooLarge

_POLL_SECONDS = 2.0
"""How long the driver holds a poll while it has no order."""
_REPORT_SECONDS = 1.0
"""Interval between reports without events, until the driver sets another one."""
_CALL_SECONDS = 5.0
_RETRY_SECONDS = 0.5
"""Multiplied by a random 0.5 to 1.5, since all agents lose their driver at the same moment."""
_BATCH = 200
"""Most events in one report."""
_BATCH_BYTES = 2**18
"""Most bytes of events in one report: a quarter of the driver's limit (wire_server.BODY_LIMIT). One
event takes at most a quarter of it, and so does the state."""
_FEWEST_BYTES = 2**10
_LINE_CHARACTERS = 2_000
"""Longest line of rank 0's console, since status.json holds 200 of them."""
_COALESCED = ("beat", "step", "data")
"""Messages that are sent as state, since only the newest of each counts."""


class DriverConnection:
    """The agent's end of the connection.

    Args:
        client: makes signed requests to the driver.
        me: this container's name.
        on_order: called once with each order, in sequence, from a thread of this object.
        on_lost: called once when the driver has been silent for `patience` seconds, no longer knows
            this agent, or a thread of this object has failed.
        patience: seconds.
    """

    def __init__(
        self,
        client: Client,
        me: str,
        *,
        on_order: Callable[[dict[str, Any]], None],
        on_lost: Callable[[], None],
        patience: float,
    ) -> None:
        self._client, self._me = client, me
        self._on_order, self._on_lost, self._patience = on_order, on_lost, patience
        self._changed = threading.Condition()
        self._events: list[tuple[int, dict[str, Any]]] = []
        self._batch_bytes = _BATCH_BYTES
        self._next_event = 1
        self._state: dict[str, Any] = {"process": 0}
        self._beat_time = 0.0
        self._contact = time.monotonic()
        self._lost_reported = False

    def register(self, node: str, facts: dict[str, Any]) -> str | None:
        """Register, and return the application's id, or None if the driver needs no more agents.

        Raises:
            ClusterError: the driver cannot be reached within `patience`, or it refuses this
                container because its node lacks something.
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
                _pause()
        if answer.get("refusal") is not None:
            raise ClusterError.from_dict(answer["refusal"])
        if not answer["welcome"]:
            return None
        self._contact = time.monotonic()
        for name, target in (("orders", self._poll), ("reports", self._report)):
            # Without orders, or without reports, this agent must not go on training.
            threads.start(target, name=name, failed=lambda _: self._lost())
        return answer["application"]

    def event(self, event: dict[str, Any]) -> None:
        """Report an event once, after all earlier ones, with its long texts cut."""
        if isinstance(event.get("line"), str):
            event = {**event, "line": shorten.text(event["line"], _LINE_CHARACTERS)}
        event = shorten.message(event, self._batch_bytes // 4)
        with self._changed:
            self._events.append((self._next_event, event))
            self._next_event += 1
            self._changed.notify_all()

    def forward(self, process: int, message: dict[str, Any]) -> None:
        """Forward a message of a training process."""
        with self._changed:
            self._turn_to(process)
            if message["type"] in _COALESCED:
                self._state[message["type"]] = message
                if message["type"] == "beat":
                    self._beat_time = time.monotonic()
                return
        self.event({**message, "process": process})

    def sampled(self, process: int, kernel: dict[str, Any] | None) -> None:
        """Set the process's state, as read from /proc."""
        with self._changed:
            self._turn_to(process)
            self._state["kernel"] = kernel

    def _turn_to(self, process: int) -> None:
        """Drop the state of an earlier process."""
        if self._state["process"] != process:
            self._state = {"process": process}
            self._beat_time = time.monotonic()

    def flush(self, seconds: float) -> None:
        """Wait until the driver has all events, for at most `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: not self._events or self._lost_reported, seconds)

    def _poll(self) -> None:
        have = 0
        while True:
            answer = self._call("/poll", {"agent": self._me, "have": have, "wait": _POLL_SECONDS})
            for number, order in [] if answer is None else answer["orders"]:
                if number > have:
                    have = number
                    self._on_order(order)

    def _report(self) -> None:
        pause = _REPORT_SECONDS
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._events, pause)
                batch = self._batch()
                state = shorten.message(self._state, self._batch_bytes // 4)
                if "beat" in state:
                    state["beat_age"] = time.monotonic() - self._beat_time
            message = {"agent": self._me, "events": batch, "state": state}
            try:
                answer = self._call("/report", message)
            except TooLarge:
                self._make_smaller()
                continue
            if answer is not None:
                pause = float(answer.get("again", _REPORT_SECONDS))
            if answer is None or not batch:
                continue
            with self._changed:
                self._events = [event for event in self._events if event[0] > batch[-1][0]]
                self._changed.notify_all()

    def _batch(self) -> list[tuple[int, dict[str, Any]]]:
        """The oldest events, as many as fit into the next report. The caller holds the lock."""
        batch, room = [], self._batch_bytes
        for event in self._events[:_BATCH]:
            room -= len(json.dumps(event))
            if room < 0 and batch:
                break
            batch.append(event)
        return batch

    def _make_smaller(self) -> None:
        """Halve the size of reports, since the driver refuses them, and of each event in them.

        Raises:
            TooLarge: the driver refuses even the smallest report.
        """
        if self._batch_bytes <= _FEWEST_BYTES:
            raise TooLarge(
                "the driver refuses even the smallest report", got=f"{self._batch_bytes} bytes"
            )
        with self._changed:
            self._batch_bytes //= 2
            most = self._batch_bytes // 4
            self._events = [(number, shorten.message(e, most)) for number, e in self._events]

    def _call(self, path: str, message: dict[str, Any]) -> dict[str, Any] | None:
        """The driver's answer; None, after a pause, if it did not answer.

        Raises:
            TooLarge: the driver refuses a message of this size.
        """
        try:
            answer = self._client.call(path, message, _CALL_SECONDS)
            self._contact = time.monotonic()
            return answer
        except TooLarge:
            self._contact = time.monotonic()
            raise
        except Refused:
            self._lost()  # the driver has dropped this agent
        except ClusterError:
            if time.monotonic() - self._contact > self._patience:
                self._lost()
        _pause()
        return None

    def _lost(self) -> None:
        with self._changed:
            first, self._lost_reported = not self._lost_reported, True
            self._changed.notify_all()
        if first:
            self._on_lost()


def _pause() -> None:
    time.sleep(_RETRY_SECONDS * random.uniform(0.5, 1.5))
