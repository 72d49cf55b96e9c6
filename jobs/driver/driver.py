"""The driver of a job: one process in the application's master container.

It serves its agents (jobs/net/wire.py) and carries out what jobs/driver/job.py decides. The next
attempt's driver does not need its state: training goes on from the newest checkpoint.
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

from howdah import redact
from howdah.config.model import Config
from howdah.errors import HowdahError, UsageError, render
from howdah.jobs import world
from howdah.jobs.agent import facts
from howdah.jobs.backend import Container, DriverAddress, DriverBackend
from howdah.jobs.driver.alerting import Alerting
from howdah.jobs.driver.faults import shared_paths
from howdah.jobs.driver.job import Job
from howdah.jobs.driver.job_status import JobStatus, exit_code
from howdah.jobs.driver.reconciler import Reconciler
from howdah.jobs.driver.workers import GANG_ATTEMPTS, NODE_FAILURES, Limits
from howdah.jobs.hang import CONTACT_SECONDS
from howdah.jobs.mpi.launch import Mpirun
from howdah.jobs.net import rendezvous
from howdah.jobs.net.signing import new_key
from howdah.jobs.net.wire_server import Answer, Server
from howdah.jobs.say import say
from howdah.jobs.status.claim import Claim, Superseded
from howdah.jobs.status.page import page
from howdah.jobs.status.status_file import StatusFile, as_json, status_path

_TICK_SECONDS = 0.2
_TICK_SHARE = 4.0
"""After a tick the lock is free for agents' requests for this many times the tick's duration."""
_SWITCH_SECONDS = 0.05
"""Interval at which threads that wait for the interpreter wake to request it. A request takes less
than a millisecond, so that they seldom wake; with Python's default of 5 ms, waking thousands of
threads took more time than their requests."""
_POLL_LIMIT = 4.0
"""Longest hold of a poll in seconds; an agent waits 5 s for an answer."""
_REPORTS_A_SECOND = 500
_MOST_REPORT_SECONDS = 3.0
"""Longest interval of reports: a rank counts as silent after 5 s without one (jobs/hang.py)."""
_LEAVE_SECONDS = 5.0
"""How long agents have to receive the order to leave."""
_LAST_STATUS_SECONDS = 30.0
_PAUSE_SECONDS = 5.0
"""A driver that has not run a tick for this long was stopped, or its machine was."""
_VERIFY_SECONDS = 15.0
"""How long a driver that was stopped waits to learn whether a later attempt has begun, before it
decides anything. If storage is unreachable too, the job goes on after that: training's own fence
guards what it writes (training/checkpoint/fence.py)."""


def run(config: Config, config_path: str, backend: DriverBackend) -> int:
    """Run one job to its end, and return the driver's exit code.

    It must be called from the main thread. `backend.finish` has been called when this returns,
    except after a signal, which ends only this driver: the cluster knows whether the application is
    over (killed) or gets a new driver (its node is shut down).

    Args:
        config: the job's configuration.
        config_path: the file that it was read from.
        backend: the cluster. A driver that meets a later attempt of the job does not finish it.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        return _Driver(config, backend).drive()
    except Superseded as later:  # that attempt finishes the application
        print(render(later), file=sys.stderr, flush=True)
        return later.exit_code
    except HowdahError as error:
        print(render(error), file=sys.stderr, flush=True)
        backend.finish("FAILED", render(error))
        return error.exit_code


def limits(config: Config) -> Limits:
    """The job's limits, from its configuration."""
    job = config.job
    return Limits(
        workers=job.workers,
        fewest=job.fewest,
        most=job.most,
        elastic=job.elastic,
        tries=job.attempts,
        max_restarts=job.restarts,
        gang_seconds=job.gang_seconds,
        gang_attempts=GANG_ATTEMPTS,
        node_failures=NODE_FAILURES,
        hang_seconds=job.hang_seconds,
        gloo_timeout_seconds=job.gloo_timeout,
        contact_seconds=CONTACT_SECONDS,
        grace_seconds=config.checkpoint.grace_seconds,
        threads=job.worker.vcores,
        gpus=job.worker.gpus,
        shared=shared_paths(config),
    )


class _Mailbox:
    """Orders for one agent, until it confirms them. Every access holds the driver's lock.

    Only its agent's poll waits on `changed`, so that an order wakes no other thread.
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
        """Wakes the main thread when events come or an agent has received its order to leave."""
        self._mail: dict[str, _Mailbox] = {}
        self._rendezvous = rendezvous.Rendezvous()
        self._job_status = JobStatus(backend.application, backend.attempt)
        self._signal: int | None = None
        self._later: Superseded | None = None
        """Why this driver neither writes nor finishes the job any more: a later attempt has it, or
        the cluster has ended this one."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note_signal)
        key = backend.session_key()
        self._ports = config.job.port_range
        self._server = Server(
            backend.listen_address(), self._ports, key,
            signed=self._answer, page=self._page, refused=say,
        )  # fmt: skip
        self._address = DriverAddress(backend.listen_address(), self._server.port, key)
        # The path cannot be guessed, so that users reach the page only through the cluster's pages.
        self._page_path = f"/page/{new_key()[:32]}/"
        self._reconciler = Reconciler(
            backend, listed=self._listed, progress=self._progress, say=self.event,
            abandoned=self._abandoned,
        )  # fmt: skip
        claim = Claim(
            status_path(config.run.directory),
            application=backend.application,
            number=backend.attempt,
            started=backend.started,
            superseded=backend.superseded,
        )
        self._attempt = claim.attempt
        self._status_file = StatusFile(
            config.run.directory,
            claim=claim,
            status=self._status,
            on_request=self._request,
            say=self.event,
            superseded=self._superseded,
        )
        self._mpirun = self._mpi() if config.job.controller == "mpi" else None
        self._job = Job(limits(config), self, time.monotonic(), backend.attempt)
        self._alerting = Alerting(
            config, step=self._due_step, page=lambda: self._job_status.page, say=say
        )

    # ---------------------------------------------------------------------- DriverActions
    def order(self, member: str, order: dict[str, Any]) -> None:
        if order["type"] == "start":  # attempts order training's fences (howdah/attempts.py)
            order = {**order, "attempt": self._attempt.to_dict()}
        if self._mpirun is not None and order["type"] == "start":
            self._mpirun.start(member, order)  # mpirun starts all of them together
            return
        self._send(member, order)

    def _send(self, member: str, order: dict[str, Any]) -> None:
        self._mailbox(member).put(order)

    def _mailbox(self, member: str) -> _Mailbox:
        return self._mail.setdefault(member, _Mailbox(self._lock))

    def keep(self, count: int) -> None:
        self._reconciler.keep(count)

    def release(self, member: str) -> None:
        self._reconciler.release(member)

    def begin(self, generation: int) -> None:
        self._rendezvous.begin(generation)

    def event(self, what: str, *, routine: bool = False) -> None:
        """Log an event and show it in the job's status. Secrets are removed, since the text of an
        error may contain them."""
        what = redact.text(what)
        with self._lock:
            self._job_status.event(what, routine=routine)
        self._status_file.touch()
        say(what)

    def _mpi(self) -> Mpirun:
        """The launcher of an MPI job's processes."""
        address = self._backend.listen_address()

        def members() -> list[str]:
            alive = [world.Candidate(m.id, m.node) for m in self._job.members.values() if m.alive]
            target = self._job.workers.target
            slots = world.assign(alive, target) if len(alive) >= target else []
            return [slot.member for slot in slots]

        def send(member: str, order: dict[str, Any]) -> None:
            with self._lock:
                self._send(member, order)

        def failed(error: HowdahError) -> None:
            with self._lock:
                self._job.fail(error, time.monotonic())

        return Mpirun(
            members=members,
            send=send,
            failed=failed,
            say=self.event,
            interface=facts.interface_of(address),
            address=address,
            ports=self._ports,
            grace_seconds=self._config.checkpoint.grace_seconds,
        )

    # --------------------------------------------------------------------------- main thread
    def drive(self) -> int:
        """Run the job from the first container to the final status, and return the exit code."""
        self._server.start()
        url = f"http://{self._address.host_port}{self._page_path}"
        self._backend.publish(self._address)
        self._job_status.page = self._backend.add_page(url) or url
        self._reconciler.start()
        self._status_file.start()
        self._alerting.start()
        say(f"driver of {self._backend.application}, attempt {self._backend.attempt}: {url}")
        looked = time.monotonic()
        while True:
            if time.monotonic() - looked > _PAUSE_SECONDS:
                self._status_file.verify(_VERIFY_SECONDS)
            looked = time.monotonic()
            with self._lock:
                now = time.monotonic()
                if now - looked > _PAUSE_SECONDS:
                    continue  # stopped since the check above: verify again before any decision
                if self._later is not None:
                    self._job.give_way(self._later, now)
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
        """Let the agents leave, write the last status, finish the application."""
        with self._lock:
            self._wake.wait_for(self._all_left, _LEAVE_SECONDS)
            error, stopped = self._job.error, self._job.stopped
            if error is not None and (unsaved := self._job_status.cut_short()):
                error.what += "; " + unsaved
        ended = None
        if error is not None:
            ended = ("interrupted" if stopped else "failed", error.what)
        written = self._status_file.close(_LAST_STATUS_SECONDS, ended)
        if not written and self._later is None:
            say("the last status could not be written")
        self._reconciler.close(_LEAVE_SECONDS)
        if self._mpirun is not None:
            self._mpirun.close()
        status = "SUCCEEDED" if error is None else "KILLED" if stopped else "FAILED"
        text = "" if error is None else render(error)
        if self._later is not None:
            self._alerting.close(None)
            self._server.stop()
            raise self._later
        self._alerting.close(None if stopped else error)
        if text:
            print(text, file=sys.stderr, flush=True)
        if self._signal is None:
            self._backend.finish(status, text)
        self._server.stop()
        return exit_code(self._job)

    def _due_step(self) -> int | None:
        """The newest step; None: no step yet, or no further step is due."""
        with self._lock:
            over = self._job.worlds.concluding or self._job.mode in ("ending", "over")
            return None if over else self._job_status.step

    def _superseded(self, later: Superseded) -> None:
        with self._lock:
            self._later = later
            self._wake.notify_all()
        say(f"{later.what}: {later.got}")

    def _abandoned(self, reason: str) -> None:
        self._superseded(Superseded("the cluster has left this driver, which ends", got=reason))

    def _all_left(self) -> bool:
        """True once every live agent has confirmed its order to leave."""
        return all(
            not self._mail[name].orders or not member.alive
            for name, member in self._job.members.items()
        )

    def _note_signal(self, number: int, _: object) -> None:
        self._signal = number

    # --------------------------------------------------------------------- agents' requests
    def _answer(self, method: str, path: str, body: bytes) -> Answer:
        parts = path.strip("/").split("/")
        if parts[0] == "rendezvous" and len(parts) >= 4 and parts[1].isdecimal():
            return rendezvous.answer(self._rendezvous, method, int(parts[1]), parts[2:], body)
        routes = {"/register": self._register, "/poll": self._poll, "/report": self._report}
        if method != "POST" or path not in routes:
            return 404, "text/plain", b"no such path\n"
        try:
            answer = routes[path](json.loads(body))
        except (ValueError, KeyError, TypeError) as error:
            say(f"malformed message to {path}: {error!r}")
            return 400, "text/plain", b"malformed message\n"
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
        refusal = None if error is None else error.as_dict()
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
                self._wake.notify_all()  # _finish waits until all agents have their orders
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
            # The state first, since the process's end may be among the events.
            member.reported(message["state"], now)
            if member.rank == 0:
                self._job_status.progress(self._job)
            for number, event in message["events"]:
                if number <= box.last_event:
                    continue
                box.last_event = number
                if not self._job_status.take(event) and member.alive:
                    self._job.happened(name, event, now)
            if message["events"]:
                self._wake.notify_all()  # one tick handles all of them
        return {"taken": True, "again": self._report_seconds()}

    def _report_seconds(self) -> float:
        """Interval of reports without events: longer in a large job, to bound their rate."""
        most = min(_MOST_REPORT_SECONDS, self._job.limits.hang_seconds / 4)
        return max(1.0, min(most, len(self._job.members) / _REPORTS_A_SECOND))

    # ------------------------------------------------------------------- clients' requests
    def _page(self, path: str) -> Answer:
        if path == self._page_path + "status.json":
            return 200, "application/json", as_json(self._status())
        if path != self._page_path:
            return 404, "text/plain", b"no such page\n"
        with self._lock:
            curve = self._job_status.curve()
        text = page(self._status(), curve, self._config.run.name)
        return 200, "text/html; charset=utf-8", text.encode(errors="replace")

    def _status(self) -> dict[str, Any]:
        with self._lock:
            self._job_status.progress(self._job)
            return self._job_status.status(self._job)

    def _progress(self) -> float:
        with self._lock:
            return self._job_status.progress(self._job)

    def _listed(self, containers: Sequence[Container]) -> None:
        with self._lock:
            self._job.listed(containers, time.monotonic())

    def _request(self, request: dict[str, Any]) -> None:
        kind, now = request.get("type"), time.monotonic()
        with self._lock:
            if kind == "scale" and isinstance(request.get("workers"), int):
                self._job.scale(request["workers"], now)
            elif kind == "stop":
                self._job.stop(bool(request.get("save")), now)
            else:
                raise UsageError("unknown request", got=str(request)[:200])
