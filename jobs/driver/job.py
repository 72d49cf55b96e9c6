"""The driver's decisions: which containers a job keeps, and what to do when something ends.

A static job has one world, and is retried from its newest checkpoint within its limits; an elastic
job goes on to the next world whenever a worker is lost or gained (jobs/driver/worlds.py). This code
does not touch a network, a file or a clock: `DriverActions` acts, and callers pass the time. One
thread at a time may be inside.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import Any, Literal

from howdah.errors import HowdahError, Terminated, UsageError
from howdah.jobs.backend import Container
from howdah.jobs.driver import errors, faults
from howdah.jobs.driver.failure_budget import FailureBudget
from howdah.jobs.driver.members import Loss, Member
from howdah.jobs.driver.nodes import NodeLedger
from howdah.jobs.driver.workers import DriverActions, Limits, Workers
from howdah.jobs.driver.worlds import JobWorlds, Phase

_PAUSE_SECONDS = 3.0
"""A driver that has not run for this long was stopped itself, and its agents were not silent."""
_PROCESS_FAILURES = 2
"""Number of processes that fail in one container before it is exchanged for another."""
_END_SECONDS = 12.0
"""How long the other ranks have to end by themselves when a static job has lost one; a rank 0 that
saves has `checkpoint.grace_seconds`."""
_WITHOUT_GPUS = 3
"""Number of containers without a GPU, in a row, after which the job requests no more."""
_AFTER_DONE_SECONDS = 30.0
_EXCHANGE_SECONDS = 10.0
"""How long an agent has to leave when its container is exchanged for another."""

Mode = Phase | Literal["failing", "ending", "over"]
"""A phase of the job's worlds; `failing`: waiting for the remaining ranks of a static job that has
lost one; `ending`; `over`."""


class Job:
    """One job, from its first container to its end.

    Args:
        limits: the limits from its configuration.
        actions: carry out its decisions.
        now: monotonic seconds, as in all methods.
        attempt: the number of the application's driver.
    """

    def __init__(
        self, limits: Limits, actions: DriverActions, now: float, attempt: int = 1
    ) -> None:
        self.limits, self._actions = limits, actions
        self.workers = Workers(limits, actions)
        self.budget = FailureBudget(limits.tries, limits.max_restarts, attempt)
        self.worlds = JobWorlds(self.workers, self.budget)
        self.nodes = NodeLedger(limits.node_failures)
        self.done_since: float | None = None
        """Time when rank 0 reported that the run is finished."""
        self.error: HowdahError | None = None
        self.stopped = False
        self._stage: Literal["training", "failing", "ending", "over"] = "training"
        self._since = now
        """Time when the stage began."""
        self._last_tick = now
        self._end_seconds = _END_SECONDS
        """How long ranks may take in the stage "ending"."""
        self._refused_without_gpus = 0
        """Number of containers in a row that were refused."""
        self._exchanged: dict[str, float] = {}
        """Containers that will be released, and the times of that decision."""

    @property
    def mode(self) -> Mode:
        return self.worlds.phase if self._stage == "training" else self._stage

    @property
    def over(self) -> bool:
        """True once the job is ending or has ended, when failures no longer count."""
        return self._stage in ("ending", "over")

    @property
    def members(self) -> dict[str, Member]:
        """All workers that the job has or has had, by container."""
        return self.workers.members

    # ------------------------------------------------------------------ what comes from outside
    def registered(self, name: str, node: str, facts: dict[str, Any], now: float) -> bool:
        """Take an agent's registration; True if it may stay."""
        if name in self.members:
            return self.members[name].alive  # the answer to its first registration was lost
        if self.over or self.worlds.pausing or len(self.workers.alive()) >= self.workers.target:
            return False
        member = Member(name, node, dict(facts), contact=now)
        if self.nodes.excluded(node):
            self._refuse_for_node(name, node, now)
            count, why = self.nodes.all_excluded()[node], self.nodes.why(node)
            member.phase = "gone"
            most = self.limits.node_failures
            member.refused = errors.excluded_node(node, name, count, why, allowed=most)
            self.members[name] = member
            return False
        self.budget.registered()
        self.nodes.seen(node)
        self.nodes.accepted()
        if self.limits.gpus:
            member.gpus = self.workers.free_gpus(node, facts)[: self.limits.gpus]
            if len(member.gpus) < self.limits.gpus:
                self._refuse_without_gpus(member, now)
                return False
            self._refused_without_gpus = 0
        self.members[name] = member
        self._actions.event(f"worker {name} on {node} has registered", routine=True)
        if self._stage != "failing":  # a failing job starts all together once the others ended
            self.workers.start(member, now)
        return True

    def refusal(self, name: str) -> HowdahError | None:
        """Why a container was refused because of its node; None: it was not."""
        member = self.members.get(name)
        return None if member is None else member.refused

    def contact(self, name: str, now: float) -> None:
        """Record contact with an agent, unless it is not (any longer) a worker of this job."""
        member = self.members.get(name)
        if member is not None and member.alive:
            member.contact = now

    def happened(self, name: str, event: dict[str, Any], now: float) -> None:
        """Handle an event that an agent reports; each comes once, in the agent's order."""
        member = self.members[name]
        if event["type"] == "leaving":
            member.leaving = event["signal"]
            return
        if event.get("process") != member.process:
            return  # the event of a process that has been replaced
        kind = event["type"]
        if kind == "started":
            member.pid = event["pid"]
        elif kind == "ready" and member.phase == "starting":
            member.phase, member.ready_since = "ready", now
        elif kind == "joined" and event["generation"] == self.worlds.generation:
            member.phase = "in" if member.phase == "placed" else member.phase
        elif kind == "commit":
            member.committed = event["step"]
        elif kind == "left" and member.phase in ("placed", "in"):
            self.worlds.left(member, event, now)
        elif kind == "concluding" and member.phase in ("placed", "in"):
            self.worlds.conclude()
        elif kind == "finished":
            member.phase = "finished"
            if member.rank == 0:
                self.done_since = now
        elif kind == "diagnosis":
            member.diagnosis = event
        elif kind == "exited":
            self._exited(member, event, now)

    def gone(self, name: str, why: str, now: float, *, fault: bool = True) -> None:
        """Handle the end of a container, or its loss.

        Args:
            fault: its node may be at fault; False: the container was ended on purpose.
        """
        member = self.members.get(name)
        if member is None or not member.alive:
            return
        was_running, rank = member.phase not in ("ended", "finished"), member.rank
        member.phase = "gone"
        # Its agent may still run, cut off from the cluster or from the driver, and must end.
        self.workers.leave(member, why, exit_code=1)
        if self.over or self.done_since is not None:
            return
        if member.leaving is not None:
            why = f"{why} (its agent received {member.leaving})"
        if fault:
            self._count_failure(member.node, name, why, now)
        else:
            self.nodes.taken_back(member.node, name, now)
        self.budget.container_lost(name, now)
        if was_running or self.limits.elastic:
            self._lost(Loss(name, member.node, rank, why), now)

    def listed(self, containers: Sequence[Container], now: float) -> None:
        """Take the backend's list of containers, which comes about every second."""
        for one in containers:
            if one.node and one.id not in self.members:
                self._check_node_of(one, now)
            if one.state == "ended" and one.id in self.members:
                # YARN has no exit code of a container that it ended: its message says why.
                code = "" if one.exit_code is None else f" (exit code {one.exit_code})"
                why = {"preempted": "its container was preempted", "lost": "its node was lost",
                       "killed": "its container was killed"}.get(
                    one.reason or "", f"its container has ended{code}"
                )  # fmt: skip
                if one.message:
                    why += f": {one.message}"
                self.gone(one.id, why, now, fault=one.reason not in ("preempted", "killed"))
                if one.reason == "preempted":
                    self.budget.preempted(one.id)
        agents = self.members.keys() | self.nodes.refused
        for event in self.budget.settle(containers, agents, now):
            self._actions.event(event)
        if (error := self.budget.never_registered()) is not None:
            self.fail(error, now)

    def scale(self, workers: int, now: float) -> None:
        """Change the number of workers.

        Raises:
            UsageError: the number is outside the job's limits.
        """
        if self.over:
            raise UsageError(
                "the job is ending and takes no more workers", got=f"{workers} workers"
            )
        low, high = self.limits.fewest, self.limits.most
        if not self.limits.elastic or not low <= workers <= high:
            raise UsageError(
                f"the job cannot have {workers} workers",
                expected=f"{low} to {high} workers (job.min_workers, job.max_workers)",
            )
        self._actions.event(f"changing from {self.workers.target} to {workers} workers")
        self.nodes.accepted()
        self.workers.target = workers
        if not self.worlds.pausing:  # the end of the pause requests them
            self._actions.keep(workers)

    def stop(self, save: bool, now: float) -> None:
        """End all processes in good order; `save`: ranks save first."""
        if self.over:
            return
        self.stopped = True
        self.error = Terminated("the job was stopped on request")
        self._actions.event("stopping on request" + (", saving first" if save else ""))
        self._end(now)
        self._end_processes(save=save, why="the job stops")

    def fail(self, error: HowdahError, now: float, *, save: bool = False) -> None:
        """End with an error; `save`: ranks with intact state save it first."""
        if self.over:
            return
        self.error = error
        self._actions.event(f"failed: {error.what}")
        self._end(now)
        self._end_processes(save=save, why="the job has failed")

    def give_way(self, error: HowdahError, now: float) -> None:
        """Let all agents end their processes and leave, since a later attempt has the job."""
        if self._stage == "over":
            return
        self.error = error
        self._actions.keep(0)
        for member in self.workers.alive():
            self.workers.leave(member, error.what, exit_code=1)
        self._turn("over", now)

    # ----------------------------------------------------------------------- as time passes
    def tick(self, now: float) -> None:
        """Decide what is due; called several times a second."""
        pause = now - self._last_tick
        self._last_tick = now
        if pause > _PAUSE_SECONDS:  # the driver was stopped, not its agents
            self._since += pause
            self.worlds.delay(pause)
            for member in self.members.values():
                member.delay(pause)
        world_lost = self._stage == "failing" or self.worlds.broken
        for member in self.workers.silent(now, world_lost=world_lost):
            silent = now - member.contact
            self.gone(member.id, f"its agent was silent for {silent:.0f} s", now)
            self._actions.release(member.id)
        late = [n for n, since in self._exchanged.items() if now - since > _EXCHANGE_SECONDS]
        for name in late:
            del self._exchanged[name]
            self._actions.release(name)
        if self.nodes.ask_again(now) and not self.worlds.pausing and not self.over:
            self._actions.keep(self.workers.target)
        if self.done_since is not None and not self.over:  # the other ranks end by themselves
            self._actions.event("training is finished", routine=True)
            self._end(now)
        if self._stage == "training":
            if (error := self.worlds.tick(now)) is not None:
                self.fail(error, now)
        elif self._stage == "failing":
            self._tick_failing(now)
        elif self._stage == "ending":
            self._tick_ending(now)
        if (error := self.budget.spent()) is not None:
            self.fail(error, now, save=True)

    def _tick_failing(self, now: float) -> None:
        """Wait for the other ranks of a static job that has lost one, then try again or fail."""
        running = self.workers.running()
        if running:
            self.workers.end_hanging(self.workers.views(self.workers.placed(), now))
            limit = _END_SECONDS
            if any(member.view(now).phase == "save" for member in running):
                limit = max(limit, self.limits.grace_seconds)
            if now - self._since > limit:
                self.workers.end_left(now, self._since, has_cause=self.budget.has_cause)
            return
        if self.budget.waiting:
            return  # the cluster will soon report why a container has ended
        error = self.budget.next_try()
        if error is not None:
            self.fail(error, now)
            return
        self._actions.event(
            f"try {self.budget.tries} of {self.limits.tries}: all start again from the newest"
            " checkpoint"
        )
        self.worlds.restart()
        self._turn("training", now)
        for member in self.workers.alive():
            if member.unfit or self.nodes.excluded(member.node):
                self._exchange(member, now)
            else:
                self.workers.start(member, now)

    def _tick_ending(self, now: float) -> None:
        limit = self._end_seconds if self.done_since is None else _AFTER_DONE_SECONDS
        if self.workers.running() and now - self._since <= limit:
            return
        for member in self.workers.alive():
            self.workers.leave(member, "the job is over", exit_code=0)
        self._turn("over", now)

    # ----------------------------------------------------------------------------- actions
    def _turn(self, stage: Literal["training", "failing", "ending", "over"], now: float) -> None:
        self._stage, self._since = stage, now

    def _end(self, now: float) -> None:
        self._turn("ending", now)
        self.worlds.halt()
        self._actions.keep(0)

    def _end_processes(self, *, save: bool, why: str) -> None:
        """Stop ranks in good order where they save, and kill all other processes at once."""
        self._end_seconds = self.limits.grace_seconds + 30.0 if save else _END_SECONDS
        for member in self.members.values():
            if member.phase in ("placed", "in", "left") and (save or self.stopped):
                self.workers.send(member, {"type": "stop", "save": save})
            elif member.running:
                self.workers.kill(member, why)

    def _count_failure(self, node: str, container: str, why: str, now: float) -> None:
        if self.nodes.failed(node, container, why, now):
            count = self.nodes.all_excluded()[node]
            self._actions.event(
                f"node {node} is excluded; failures of workers there: {count}, the last: {why}"
            )

    def _check_node_of(self, one: Container, now: float) -> None:
        """Check a container without an agent: its node may be excluded, or have ended it."""
        if one.state == "running" and self.nodes.excluded(one.node):
            self._refuse_for_node(one.id, one.node, now)
            return
        bad = one.state == "ended" and one.reason in ("failed", "lost")
        if not bad or self.budget.knows(one.id):
            return
        if self.nodes.excluded(one.node):
            self._refuse_for_node(one.id, one.node, now)
        else:
            why = f"a container has ended before its agent registered {one.message}"
            self._count_failure(one.node, one.id, why.rstrip(), now)

    def _refuse_for_node(self, container: str, node: str, now: float) -> None:
        """Release a container on an excluded node, and request another one after a pause."""
        if self.worlds.pausing or self.over:
            return  # all containers are released anyway
        if not self.nodes.refuse(container, now):
            return
        self._actions.event(f"container {container} is released: node {node} is excluded")
        present = len(self.workers.alive())
        self._actions.keep(max(present, self.workers.target - self.nodes.held))
        self._actions.release(container)
        if not self.nodes.enough:
            return
        excluded = self.nodes.all_excluded()
        if not self._goes_on_with(present):
            self.fail(errors.no_good_node(excluded, self.nodes.why(node)), now)
            return
        self.nodes.accepted()
        self.workers.set_target(present)
        self._actions.event(
            f"continuing with {present} workers: the cluster only offers excluded nodes"
            f" ({', '.join(excluded)}; `howdah scale` requests more)"
        )

    def _refuse_without_gpus(self, member: Member, now: float) -> None:
        """Refuse a container; after some in a row the job goes on with fewer workers, or fails.

        The cluster is likely to offer the same node again, since it counts the GPU as free.
        """
        error = errors.no_gpu(member.node, member.id, member.facts)
        member.phase, member.gpus, member.refused = "gone", [], error
        self.members[member.id] = member
        self._actions.event(f"worker {member.id} on {member.node} is refused: {error.got}")
        self._refused_without_gpus += 1
        if self._refused_without_gpus < _WITHOUT_GPUS:
            return
        present = len(self.workers.alive())
        if not self._goes_on_with(present):
            self.fail(error, now)
            return
        self._refused_without_gpus = 0
        self.workers.set_target(present)
        self._actions.event(
            f"continuing with {present} workers: {_WITHOUT_GPUS} containers in a row had no GPU"
            " (`howdah scale` requests more)"
        )

    def _goes_on_with(self, workers: int) -> bool:
        """True if the job trains and may go on with this number of workers."""
        return self.mode in ("running", "changing") and workers >= self.limits.fewest

    def _exited(self, member: Member, event: dict[str, Any], now: float) -> None:
        code = event["exit_code"]
        finished = member.phase == "finished"
        member.phase = "ended"
        if self.over or (finished and code == 0):
            return
        loss = self._loss_of(member, event)
        member.failures += not loss.follows
        member.unfit = not loss.consequence and loss.fault == "node"
        if not loss.consequence and loss.fault in ("node", "unknown"):
            why = faults.signature((loss.failure or {}).get("error")) or loss.why
            self._count_failure(member.node, member.id, why, now)
        self._lost(loss, now)
        if not self.limits.elastic or self.over:
            return
        self.budget.process_lost(loss, self.worlds.generation, now)
        many = member.failures >= _PROCESS_FAILURES
        # A signal may have come from the container's preemption, which the cluster reports later.
        bad_node = code >= 0 and self.nodes.excluded(member.node)
        if many or member.unfit or bad_node:
            self._exchange(member, now)
        else:
            self.workers.start(member, now)

    def _loss_of(self, member: Member, event: dict[str, Any]) -> Loss:
        """The loss that the end of a training process is, with its fault."""
        code, failure = event["exit_code"], event.get("failure")
        if member.kill_reason is not None:
            why = f"killed by Howdah: {member.kill_reason}"
            if member.diagnosis is not None:
                why += f"; its process was {member.diagnosis['state']}"
        elif code < 0:
            why = f"its process was killed by signal {-code}"
        else:
            why = f"its process ended with exit code {code}"
        lines = list(event.get("lines") or [])
        if member.diagnosis is not None and member.diagnosis.get("stacks"):
            lines = list(member.diagnosis["stacks"])
        # Completed steps: from the failure message, or else from the last report.
        reports = ((failure or {}).get("step"), member.step.get("step"), member.beat.get("step"))
        return Loss(
            member.id, member.node, member.rank, why, code, tuple(lines), failure,
            follows=member.kill_follows or (member.abandoned and code == -signal.SIGTERM),
            fault=faults.fault_of((failure or {}).get("error"), self.limits.shared),
            step=next((step for step in reports if isinstance(step, int)), None),
        )  # fmt: skip

    def _exchange(self, member: Member, now: float) -> None:
        """Exchange a container for another one: its agent leaves, or its container is released some
        seconds later if a broken node prevents that."""
        member.phase = "gone"
        self._exchanged[member.id] = now
        self._actions.event(f"container {member.id} on {member.node} is being replaced")
        self.workers.leave(member, "its processes fail there", exit_code=1)

    def _lost(self, loss: Loss, now: float) -> None:
        """Handle a process or a container that has ended too early."""
        self.budget.add(loss)
        self._actions.event(loss.what)
        other_node = self.nodes.met_elsewhere(loss)
        if loss.fatal:
            self.fail(loss.error(), now)
        elif other_node is not None:
            self.fail(errors.on_two_nodes(loss.error(), loss.step or 0, other_node), now)
        elif self.limits.elastic:
            self.worlds.lost(loss, now)
        elif self._stage != "failing" and loss.of_a_world:
            self._turn("failing", now)
            self.worlds.halt()
            self._actions.begin(self.worlds.generation + 1)  # ends waiting in the rendezvous
            for member in self.workers.placed():  # rank 0 saves its last complete step
                member.abandoned = True
                self.workers.send(member, {"type": "abandon"})
