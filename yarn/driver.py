"""The driver of a job: one process in the application's master container.

It listens for its agents (yarn/wire.py), lets yarn/driver_job.py decide, and carries out what that
says. It holds nothing that a job's next driver would miss: checkpoints decide what is kept.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from howdah.config import Config
from howdah.errors import HowdahError, UsageError, render
from yarn import agent_facts, driver_page, driver_status, rendezvous, wire, world
from yarn.backend import Container, DriverAddress, DriverBackend
from yarn.driver_books import Books
from yarn.driver_cluster import ClusterSide
from yarn.driver_job import Job
from yarn.driver_state import Limits
from yarn.mpi import Mpirun

__all__ = ["run"]

_TICK_SECONDS = 0.2
_TICK_SHARE = 4.0
"""So many times as long as a tick took, the lock is left to the agents' requests."""
_SWITCH_SECONDS = 0.05
"""Each of the threads that wait for the interpreter wakes so often to ask for it. Requests take
less than a millisecond, so that it is free long before; with the default of 5 ms, waking thousands
of threads took more time than their requests."""
_POLL_LIMIT = 4.0
"""Seconds that a poll is held at the most; an agent waits 5 s for an answer."""
_REPORTS_A_SECOND = 500
_MOST_REPORT_SECONDS = 3.0
"""A rank is taken to be silent after 5 s without a report (yarn/hang.py)."""
_LEAVE_SECONDS = 5.0
"""How long agents have to hear that the job is over."""
_LAST_STATUS_SECONDS = 30.0


def run(config: Config, config_path: str, backend: DriverBackend) -> int:
    """Run one job to its end; the driver's exit code.

    To be called from the main thread. `backend.finish` has been called when this comes back, save
    after a signal: who sends one ends this driver, and the cluster knows whether the job goes on
    (a killed application) or begins anew (a node that is shut down).

    Args:
        config: the job's configuration.
        config_path: the file it was read from.
        backend: the cluster.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        return _Driver(config, backend).drive()
    except HowdahError as error:
        print(render(error), file=sys.stderr, flush=True)
        backend.finish("FAILED", render(error))
        return error.exit_code


def limits(config: Config) -> Limits:
    """What the configuration says of a job."""
    yarn = config.yarn
    return Limits(
        workers=yarn.workers,
        fewest=yarn.fewest,
        most=yarn.most,
        elastic=yarn.elastic,
        tries=yarn.attempts,
        max_restarts=yarn.max_restarts,
        gang_seconds=yarn.gang_seconds,
        gang_attempts=yarn.gang_attempts,
        hang_seconds=yarn.hang_seconds,
        grace_seconds=config.checkpoint.grace_seconds,
        threads=yarn.worker.vcores,
        gpus=yarn.worker.gpus,
    )


class _Mailbox:
    """Orders for one agent, until it says that it has them. Every access holds the driver's lock.

    Its agent's poll waits here alone: an order wakes the one thread that is to hand it over.
    """

    def __init__(self, lock: threading.RLock) -> None:
        self.changed = threading.Condition(lock)
        self.number = 0
        self.orders: deque[tuple[int, dict[str, Any]]] = deque()
        self.last_event = 0

    def put(self, order: dict[str, Any]) -> None:
        self.number += 1
        self.orders.append((self.number, order))
        self.changed.notify_all()

    def after(self, have: int) -> list[tuple[int, dict[str, Any]]]:
        while self.orders and self.orders[0][0] <= have:
            self.orders.popleft()
        return list(self.orders)


class _Driver:
    """The job, its agents and the cluster; every access to the job holds one lock."""

    def __init__(self, config: Config, backend: DriverBackend) -> None:
        self._config, self._backend = config, backend
        self._lock = threading.RLock()
        self._wake = threading.Condition(self._lock)
        """Of the main thread: the job is over, or an agent has been told so."""
        self._mail: dict[str, _Mailbox] = {}
        self._rendezvous = rendezvous.Rendezvous()
        self._chronicle = driver_status.Chronicle(backend.application, backend.attempt)
        self._signal: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note_signal)
        key = wire.new_key()
        ports = config.yarn.port_range
        self._server = wire.Server(
            backend.listen_address(),
            None if ports is None else range(ports[0], ports[1] + 1),
            key,
            signed=self._answer,
            page=self._page,
            refused=_say,
        )
        self._address = DriverAddress(backend.listen_address(), self._server.port, key)
        # Nobody guesses the page's place; the cluster's own pages lead to it.
        self._page_path = f"/page/{wire.new_key()[:32]}/"
        self._cluster = ClusterSide(
            backend,
            listed=self._listed,
            progress=self._progress,
            say=self.event,
        )
        self._books = Books(
            config.run.directory,
            fresh=backend.attempt == 1,
            status=self._status,
            obey=self._obey,
            say=self.event,
        )
        self._mpirun = self._mpi() if config.yarn.controller == "mpi" else None
        self._job = Job(limits(config), self, time.monotonic(), backend.attempt)

    # ---------------------------------------------------------------- what the job can do
    def order(self, member: str, order: dict[str, Any]) -> None:
        """Hands: send an order to an agent."""
        if self._mpirun is not None and order["type"] == "start":
            self._mpirun.start(member, order)  # all of them at once, by mpirun
            return
        self._send(member, order)

    def _send(self, member: str, order: dict[str, Any]) -> None:
        self._mailbox(member).put(order)

    def _mailbox(self, member: str) -> _Mailbox:
        return self._mail.setdefault(member, _Mailbox(self._lock))

    def keep(self, count: int) -> None:
        """Hands: have so many containers."""
        self._cluster.keep(count)

    def release(self, member: str) -> None:
        """Hands: end a container."""
        self._cluster.release(member)

    def begin(self, generation: int) -> None:
        """Hands: open the rendezvous of a generation."""
        self._rendezvous.begin(generation)

    def event(self, what: str) -> None:
        """Hands: tell people."""
        with self._lock:
            self._chronicle.event(what)
        self._books.touch()
        _say(what)

    def _mpi(self) -> Mpirun:
        """What starts the processes of an MPI job."""
        address, ports = self._backend.listen_address(), self._config.yarn.port_range

        def members() -> list[str]:
            there = [world.Candidate(m.id, m.node) for m in self._job.members.values() if m.alive]
            return [slot.member for slot in world.assign(there, self._job.wanted)]

        def send(member: str, order: dict[str, Any]) -> None:
            with self._lock:
                self._send(member, order)

        def failed(error: HowdahError) -> None:
            with self._lock:
                self._job.fail(error, time.monotonic())

        return Mpirun(
            members=members,
            wanted=lambda: self._job.wanted,
            send=send,
            failed=failed,
            say=self.event,
            interface=agent_facts.interface_of(address),
            address=address,
            ports=None if ports is None else range(ports[0], ports[1] + 1),
            grace_seconds=self._config.checkpoint.grace_seconds,
        )

    # ---------------------------------------------------------------------------- its life
    def drive(self) -> int:
        """From the first container to the final status."""
        self._server.start()
        url = f"http://{self._address.address}:{self._address.port}{self._page_path}"
        self._backend.publish(self._address)
        self._chronicle.page = self._backend.add_page(url) or url
        self._cluster.start()
        self._books.start()
        _say(f"driver of {self._backend.application}, attempt {self._backend.attempt}: {url}")
        while True:
            with self._lock:
                now = time.monotonic()
                if self._signal is not None:
                    self._job.stop(False, now)
                self._job.tick(now)
                took = time.monotonic() - now
                if self._job.mode == "over":
                    break
                self._wake.wait(_TICK_SECONDS)
            # In a large job thousands of events come at once, and a tick looks at all members.
            time.sleep(min(_TICK_SECONDS, took * _TICK_SHARE))
        return self._finish()

    def _finish(self) -> int:
        """Agents leave, the last status is written, the cluster is told how it ended."""
        with self._lock:
            self._wake.wait_for(self._all_left, _LEAVE_SECONDS)
            error, stopped = self._job.error, self._job.stopped
        ended = None
        if error is not None:
            ended = ("interrupted" if stopped else "failed", error.what)
        if not self._books.close(_LAST_STATUS_SECONDS, ended):
            _say("the last status could not be written")
        self._cluster.close(_LEAVE_SECONDS)
        if self._mpirun is not None:
            self._mpirun.close()
        status = "SUCCEEDED" if error is None else "KILLED" if stopped else "FAILED"
        text = "" if error is None else render(error)
        if text:
            print(text, file=sys.stderr, flush=True)
        if self._signal is None:
            self._backend.finish(status, text)
        self._server.stop()
        return driver_status.exit_code(self._job)

    def _all_left(self) -> bool:
        """Every agent that may still listen has been told to leave."""
        return all(
            not self._mail[name].orders or not member.alive
            for name, member in self._job.members.items()
        )

    def _note_signal(self, number: int, _: object) -> None:
        self._signal = number

    # ------------------------------------------------------------- what the agents ask for
    def _answer(self, method: str, path: str, body: bytes) -> wire.Answer:
        words = path.strip("/").split("/")
        if words[0] == "rendezvous" and len(words) >= 4 and words[1].isdecimal():
            return rendezvous.answer(self._rendezvous, method, int(words[1]), words[2:], body)
        routes = {"/register": self._register, "/poll": self._poll, "/report": self._report}
        if method != "POST" or path not in routes:
            return 404, "text/plain", b"no such thing\n"
        try:
            answer = routes[path](json.loads(body))
        except (ValueError, KeyError, TypeError) as error:
            _say(f"a message that is none of ours to {path}: {error!r}")
            return 400, "text/plain", b"not understood\n"
        if answer is None:
            return 410, "text/plain", b"not a worker of this job\n"
        return 200, "application/json", json.dumps(answer).encode()

    def _register(self, message: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            welcome = self._job.registered(
                message["agent"], message["node"], message["facts"], time.monotonic()
            )
            self._mailbox(message["agent"])
            error = self._job.refusal(message["agent"])
        refusal = None
        if error is not None:
            names = ("what", "where", "expected", "got", "remedy")
            refusal = {name: getattr(error, name) for name in names}
        application = self._backend.application
        return {"welcome": welcome, "application": application, "refusal": refusal}

    def _poll(self, message: dict[str, Any]) -> dict[str, Any] | None:
        name, have = message["agent"], int(message["have"])
        with self._lock:
            box = self._mail.get(name)
            if name not in self._job.members or box is None:
                return None
            self._job.contact(name, time.monotonic())
            wait = min(_POLL_LIMIT, max(float(message["wait"]), self._report_seconds()))
            box.after(have)
            if self._job.mode == "over":
                self._wake.notify_all()  # it is waited for that all have heard it
            box.changed.wait_for(lambda: box.after(have), wait)
            self._job.contact(name, time.monotonic())
            return {"orders": box.after(have)}

    def _report(self, message: dict[str, Any]) -> dict[str, Any] | None:
        name = message["agent"]
        with self._lock:
            member, box = self._job.members.get(name), self._mail.get(name)
            if member is None or box is None:
                return None
            now = time.monotonic()
            self._job.contact(name, now)
            # First how far it is, then what has happened: its end may be among the events.
            member.reported(message["state"], now)
            if member.rank == 0:
                self._chronicle.progress(self._job)
            for number, event in message["events"]:
                if number <= box.last_event:
                    continue
                box.last_event = number
                if not self._chronicle.heard(event) and member.alive:
                    self._job.happened(name, event, now)
            if message["events"]:
                self._wake.notify_all()  # what follows from them is decided once for all
        return {"taken": True, "again": self._report_seconds()}

    def _report_seconds(self) -> float:
        """When an agent without events is to report again: a large job's reports are spread."""
        most = min(_MOST_REPORT_SECONDS, self._job.limits.hang_seconds / 4)
        return max(1.0, min(most, len(self._job.members) / _REPORTS_A_SECOND))

    # --------------------------------------------------------------- what others ask for
    def _page(self, path: str) -> wire.Answer:
        if path == self._page_path + "status.json":
            text = json.dumps(self._status(), ensure_ascii=False)
            return 200, "application/json", text.encode()
        if path != self._page_path:
            return 404, "text/plain", b"no such page\n"
        with self._lock:
            curve = self._chronicle.curve()
        text = driver_page.page(self._status(), curve, self._config.run.name)
        return 200, "text/html; charset=utf-8", text.encode()

    def _status(self) -> dict[str, Any]:
        with self._lock:
            self._chronicle.progress(self._job)
            return self._chronicle.status(self._job)

    def _progress(self) -> float:
        with self._lock:
            return self._chronicle.progress(self._job)

    def _listed(self, containers: Sequence[Container]) -> None:
        with self._lock:
            self._job.listed(containers, time.monotonic())

    def _obey(self, request: dict[str, Any]) -> None:
        kind, now = request.get("type"), time.monotonic()
        with self._lock:
            if kind == "scale" and isinstance(request.get("workers"), int):
                self._job.scale(request["workers"], now)
            elif kind == "stop":
                self._job.stop(bool(request.get("save")), now)
            else:
                raise UsageError("an unknown request", got=str(request)[:200])


def _say(line: str) -> None:
    stamp = time.strftime("%H:%M:%S", time.gmtime())
    print(f"{stamp} {line}", file=sys.stderr, flush=True)
