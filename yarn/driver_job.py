"""The driver's decisions: which workers form which world, and what to do when something ends.

A generation is one assignment of ranks to workers. A static job has one, and is tried again from
its newest checkpoint where it may; an elastic one goes on to the next whenever a worker is lost or
gained. Nothing here touches a network, a file or a clock: `Hands` acts, callers say what time it
is, and one thread at a time is inside.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Sequence
from typing import Any

from howdah.errors import HowdahError, Terminated, UsageError
from yarn import driver_errors
from yarn.backend import Container
from yarn.driver_members import Loss, Member
from yarn.driver_state import Hands, Limits
from yarn.driver_worlds import JobWorlds

__all__ = ["CONTACT_SECONDS", "Job"]

CONTACT_SECONDS = 15.0
"""Silence of an agent after which its container is given up."""
_PROCESS_FAILURES = 2
"""Processes that may fail in one container before it is given back for another."""
_LAST_WORDS_SECONDS = 12.0
"""How long the others have to end by themselves when a static job has lost a rank; a rank 0 that
saves has `checkpoint.grace_seconds`."""
_STILLBORN = 3
_WITHOUT_GPUS = 3
"""Containers without a GPU, in a row, after which no more are asked for."""
_AFTER_DONE_SECONDS = 30.0


class Job(JobWorlds):
    """One job, from its first container to its end."""

    def __init__(self, limits: Limits, hands: Hands, now: float, attempt: int = 1) -> None:
        super().__init__(limits, hands, now, attempt)
        self._patience = _LAST_WORDS_SECONDS
        hands.keep(self.wanted)

    # ------------------------------------------------------------------ what comes from outside
    def registered(self, name: str, node: str, facts: dict[str, Any], now: float) -> bool:
        """An agent is there; whether it may stay."""
        if name in self.members:
            return self.members[name].alive  # its first answer was lost
        present = sum(member.alive for member in self.members.values())
        if self.mode in ("ending", "over") or self.gang.pausing or present >= self.wanted:
            return False
        error = driver_errors.old_glibc(node, name, facts)
        if error is not None:
            self.fail(error, now)
            return False
        self.ledger.stillborn = 0
        member = Member(name, node, dict(facts), contact=now)
        if self.limits.gpus:
            member.gpus = self._free_gpus(node, facts)[: self.limits.gpus]
            if len(member.gpus) < self.limits.gpus:
                self._refuse_without_gpus(member, now)
                return False
            self.ledger.without_gpus = 0
        self.members[name] = member
        self.hands.event(f"worker {name} on {node} is there")
        if self.mode != "failing":  # then all start together, when the others have ended
            self._start(member, now)
        return True

    def refusal(self, name: str) -> HowdahError | None:
        """Why a container was refused; None: it was not, or for no fault of its node."""
        member = self.members.get(name)
        return None if member is None else member.refused

    def contact(self, name: str, now: float) -> bool:
        """A sign of life; False if the worker is none of ours (any more)."""
        member = self.members.get(name)
        if member is None or not member.alive:
            return False
        member.contact = now
        return True

    def happened(self, name: str, event: dict[str, Any], now: float) -> None:
        """Something that an agent tells, once each and in its order."""
        member = self.members[name]
        if event["type"] == "leaving":
            member.leaving = event["signal"]
            return
        if event.get("process") != member.process:
            return  # of a process that is not there any more
        kind = event["type"]
        if kind == "started":
            member.pid = event["pid"]
        elif kind == "ready" and member.phase == "starting":
            member.phase, member.ready_since = "ready", now
        elif kind == "joined" and event["generation"] == self.generation:
            member.phase = "in" if member.phase == "placed" else member.phase
        elif kind == "commit":
            member.committed = event["step"]
        elif kind == "left" and member.phase in ("placed", "in"):
            self._left(member, event)
        elif kind == "concluding" and member.phase in ("placed", "in"):
            self._conclude(now)
        elif kind == "finished":
            member.phase = "finished"
            if member.rank == 0:
                self.done_since = now
        elif kind == "diagnosis":
            member.diagnosis = event
        elif kind == "exited":
            self._exited(member, event, now)

    def gone(self, name: str, why: str, now: float) -> None:
        """A container is no more, or is given up."""
        member = self.members.get(name)
        if member is None or not member.alive:
            return
        was_running, rank = member.phase not in ("ended", "finished"), member.rank
        member.phase = "gone"
        # Cut off from the cluster or from us, it may still be there: it has no place any more.
        leave = {"type": "leave", "exit_code": 1, "why": why}
        self.hands.order(name, leave)
        if self.mode in ("ending", "over") or self.done_since is not None:
            return
        if member.leaving is not None:
            why = f"{why} (its agent was sent {member.leaving})"
        self.ledger.container_lost(name, now)
        if was_running or self.limits.elastic:
            self._lost(member, Loss(name, member.node, rank, why), now)

    def listed(self, containers: Sequence[Container], now: float) -> None:
        """The backend's list, from time to time."""
        self._requested = sum(one.state == "requested" for one in containers)
        for one in containers:
            if one.state == "ended" and one.id in self.members:
                why = {"preempted": "its container was preempted", "lost": "its node was lost",
                       "killed": "its container was killed"}.get(
                    one.reason or "", f"its container has ended (exit code {one.exit_code})"
                )  # fmt: skip
                if one.message:
                    why += f": {one.message}"
                self.gone(one.id, why, now)
                if one.reason == "preempted":
                    self._losses = [
                        dataclasses.replace(loss, preempted=loss.preempted or loss.member == one.id)
                        for loss in self._losses
                    ]
        for event in self.ledger.settle(containers, set(self.members), now):
            self.hands.event(event)
        if self.ledger.stillborn >= _STILLBORN:
            self.fail(driver_errors.stillborn(self.ledger.stillborn), now)

    def scale(self, workers: int, now: float) -> None:
        """Another size is wanted.

        Raises:
            UsageError: it is not possible.
        """
        low, high = self.limits.fewest, self.limits.most
        if not self.limits.elastic or not low <= workers <= high:
            raise UsageError(
                "the job cannot have that size",
                expected=f"{low} to {high} workers (yarn.min_workers, yarn.max_workers)",
                got=str(workers),
            )
        self.hands.event(f"{workers} workers are wanted instead of {self.wanted}")
        self.wanted = workers
        self.hands.keep(workers)

    def stop(self, save: bool, now: float) -> None:
        """End in good order, saving first if asked."""
        if self.mode in ("ending", "over"):
            return
        self.stopped = True
        self.error = Terminated("the job was asked to stop")
        self.hands.event("asked to stop" + (", saving first" if save else ""))
        self._end(now)
        self._end_processes(save=save, why="the job stops")

    def fail(self, error: HowdahError, now: float, *, save: bool = False) -> None:
        """End with an error; `save`: whoever holds a state that is good saves it first."""
        if self.mode in ("ending", "over"):
            return
        self.error = error
        self.hands.event(f"failed: {error.what}")
        self._end(now)
        self._end_processes(save=save, why="the job has failed")

    # ----------------------------------------------------------------------- as time passes
    def tick(self, now: float) -> None:
        """Look at everything; to be called some times a second."""
        pause = now - self._last_tick
        self._last_tick = now
        if pause > 3.0:  # we were stopped, not they
            for member in self.members.values():
                member.contact += pause
                member.beat_time += pause
        for member in list(self.members.values()):
            if member.alive and now - member.contact > CONTACT_SECONDS:
                self.gone(member.id, f"its agent was silent for {CONTACT_SECONDS:.0f} s", now)
                self.hands.release(member.id)
        if self.done_since is not None and self.mode not in ("ending", "over"):
            self._finish(now)
        step = {
            "waiting": self._tick_waiting,
            "running": self._tick_running,
            "changing": self._tick_changing,
            "failing": self._tick_failing,
            "ending": self._tick_ending,
        }.get(self.mode)
        if step is not None:
            step(now)
        if self.ledger.restarts > self.limits.max_restarts:
            last = self._losses[-1].error() if self._losses else None
            allowed = self.limits.max_restarts
            error = driver_errors.too_many_losses(self.ledger.restarts, allowed, last)
            self.fail(error, now, save=True)

    def _tick_failing(self, now: float) -> None:
        left = [member for member in self.members.values() if member.running]
        if left:
            saves = any(member.view(now).phase == "save" for member in left)
            limit = _LAST_WORDS_SECONDS
            if saves:
                limit = max(limit, self.limits.grace_seconds)
            if now - self._since > limit:
                for member in left:
                    self._kill(member, "another rank was lost", follows=True)
            return
        if self.ledger.open:
            return  # the cluster will say soon why a container has ended
        causes = [loss for loss in self._losses if not loss.consequence] or self._losses
        cause = next((loss for loss in causes if loss.fatal), causes[0])
        if not cause.preempted:
            if cause.fatal or self.tries >= self.limits.tries:
                self.fail(cause.error(), now)
                return
            self.tries += 1
        self.hands.event(
            f"try {self.tries} of {self.limits.tries}: all start again from the newest checkpoint"
        )
        self._losses, self.world = [], []
        self._turn("waiting", now)
        for member in self.members.values():
            if member.alive:
                self._start(member, now)

    def _tick_ending(self, now: float) -> None:
        left = [member for member in self.members.values() if member.running]
        limit = self._patience
        if self.done_since is not None:
            limit = _AFTER_DONE_SECONDS
        if left and now - self._since <= limit:
            return
        for member in self.members.values():
            if member.alive:
                self.hands.order(member.id, {"type": "leave", "exit_code": 0, "why": "the end"})
        self._turn("over", now)

    # ------------------------------------------------------------------------- what is done
    def _end(self, now: float) -> None:
        self._turn("ending", now)
        self.hands.keep(0)

    def _end_processes(self, *, save: bool, why: str) -> None:
        """Stop the ranks in good order where they shall save, and all others at once."""
        self._patience = self.limits.grace_seconds + 30.0 if save else _LAST_WORDS_SECONDS
        for member in self.members.values():
            if member.phase in ("placed", "in", "left") and (save or self.stopped):
                self._tell(member, {"type": "stop", "save": save})
            elif member.running:
                self._kill(member, why)

    def _conclude(self, now: float) -> None:
        """The steps are over. A change that was ordered too late to be followed is called off."""
        self._concluding = True
        if self.mode == "changing" and self._loss_since is None:
            self._turn("running", now)

    def _finish(self, now: float) -> None:
        """Rank 0 is done, and with it the run; the others end by themselves."""
        self.hands.event("training is finished")
        self._end(now)

    def _refuse_without_gpus(self, member: Member, now: float) -> None:
        """Another container takes its place; after some in a row the job does without, or fails.

        YARN is likely to give the same node again: its own count says that a GPU is free there.
        """
        free = self._free_gpus(member.node, member.facts)
        error = driver_errors.no_gpus(member.node, member.id, member.facts, self.limits.gpus, free)
        member.phase, member.gpus, member.refused = "gone", [], error
        self.members[member.id] = member
        self.hands.event(f"worker {member.id} on {member.node} is refused: {error.got}")
        self.ledger.without_gpus += 1
        if self.ledger.without_gpus < _WITHOUT_GPUS:
            return
        there = sum(one.alive for one in self.members.values())
        if self.mode not in ("running", "changing") or there < self.limits.fewest:
            self.fail(error, now)
            return
        self.ledger.without_gpus, self.wanted = 0, there
        self.hands.keep(there)
        self.hands.event(
            f"{there} workers are wanted from now on: {_WITHOUT_GPUS} containers in a row had no"
            " GPU (`howdah scale` asks again)"
        )

    def _exited(self, member: Member, event: dict[str, Any], now: float) -> None:
        code, failure = event["exit_code"], event.get("failure")
        finished = member.phase == "finished"
        rank, member.phase = member.rank, "ended"
        if self.mode in ("ending", "over") or (finished and code == 0):
            return
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
            lines = [*member.diagnosis["stacks"]]
        follows = member.kill_follows or (member.abandoned and code == -signal.SIGTERM)
        loss = Loss(member.id, member.node, rank, why, code, tuple(lines), failure, follows=follows)
        self._lost(member, loss, now)
        member.failures += not loss.follows
        if not self.limits.elastic or self.mode in ("ending", "over"):
            return
        self.ledger.process_lost(loss, self.generation, now)
        if member.failures >= _PROCESS_FAILURES:
            member.phase = "gone"
            self.hands.event(f"container {member.id} on {member.node} is given back for another")
            leave = {"type": "leave", "exit_code": 1, "why": "its processes keep failing"}
            self.hands.order(member.id, leave)
        else:
            self._start(member, now)

    def _lost(self, member: Member, loss: Loss, now: float) -> None:
        """A process or a container has ended before its time."""
        self._losses.append(loss)
        self._explained = True
        self.hands.event(f"{loss.who} was lost: {loss.why}")
        if loss.fatal:
            self.fail(loss.error(), now)
        elif not self.limits.elastic:
            if self.mode != "failing" and (loss.rank is not None or loss.exit_code is not None):
                self._turn("failing", now)
                self.hands.begin(self.generation + 1)  # ends waiting in the rendezvous
                for other in self._placed():  # rank 0 saves the last step that it has completed
                    other.abandoned = True
                    self._tell(other, {"type": "abandon"})
        elif self.mode in ("running", "changing") and loss.rank is not None:
            self._change(now, lost=True)
