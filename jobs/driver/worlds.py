"""A job's worlds: when a world is formed and from which workers, when it is left for the next, and
which rank hangs in it.

A generation is one assignment of ranks to workers; it ends when a worker is lost or gained.
"""

from __future__ import annotations

import random
from typing import Any, Literal

from howdah.errors import HowdahError
from howdah.jobs import hang, world
from howdah.jobs.driver import errors
from howdah.jobs.driver.failure_budget import FailureBudget
from howdah.jobs.driver.members import Loss, Member
from howdah.jobs.driver.workers import Workers

_SETTLE_SECONDS = 10.0
"""How long a worker that could join waits for others that will soon: a change costs seconds."""
_START_SECONDS = 300.0
"""A process that has not imported its framework after this long hangs."""

Phase = Literal["waiting", "running", "changing", "halted"]
"""`waiting`: for enough workers; `running`: training; `changing`: leaving a world for the next;
`halted`: not forming or leaving any world."""


class Gang:
    """The wait for all workers of a start, and the pause after a failed wait.

    Two jobs that each hold half of the containers they need would wait for each other for ever: a
    job that has waited long enough releases all of them, and requests them again after a random
    pause.

    Args:
        seconds: how long to wait for all workers.
        attempts: number of waits in all.
    """

    def __init__(self, seconds: float, attempts: int) -> None:
        self._seconds, self._attempts = seconds, attempts
        self.tries = 0
        self._deadline: float | None = None
        self._pause_until: float | None = None

    def delay(self, seconds: float) -> None:
        """Discount the seconds for which the driver was stopped."""
        if self._deadline is not None:
            self._deadline += seconds

    def complete(self) -> None:
        """End the wait, since no worker is missing."""
        self._deadline = None

    def wait(self, now: float) -> bool:
        """Wait for a missing worker; True once the wait has been long enough."""
        if self._deadline is None:
            self._deadline = now + self._seconds
        return now > self._deadline

    def give_up(self, now: float) -> float | None:
        """Begin a pause, and return its seconds, or None after the last try."""
        self._deadline = None
        self.tries += 1
        if self.tries >= self._attempts:
            return None
        # Shorter than the wait, so that the cluster does not idle, and longer with each try.
        length = random.uniform(0.1, 1.0) * min(self._seconds, 5.0 * 2.0**self.tries)
        self._pause_until = now + length
        return length

    @property
    def pausing(self) -> bool:
        """True while all containers are released, until the next request."""
        return self._pause_until is not None

    def pause_over(self, now: float) -> bool:
        """True once, when the pause ends."""
        if self._pause_until is None or now < self._pause_until:
            return False
        self._pause_until = None
        return True


class JobWorlds:
    """Forms a job's worlds one after the other.

    Args:
        workers: the job's workers.
        budget: counts worlds that fail without the loss of a rank.
    """

    def __init__(self, workers: Workers, budget: FailureBudget) -> None:
        self._workers, self._budget = workers, budget
        self._limits, self._actions = workers.limits, workers.actions
        self.phase: Phase = "waiting"
        self.generation = 0
        self.slots: list[world.Slot] = []
        """The newest world, in the order of its ranks."""
        self._gang = Gang(self._limits.gang_seconds, self._limits.gang_attempts)
        self._explained = True
        """True if the reason why the newest world was left is known."""
        self._loss_since: float | None = None
        """Time when the newest world was known to have lost a rank; None: it has not."""
        self.concluding = False
        """True once the newest world's steps are over: it evaluates, exports and ends."""

    @property
    def pausing(self) -> bool:
        """True while all containers are released; workers are requested again after a pause."""
        return self._gang.pausing

    @property
    def broken(self) -> bool:
        """True if the newest world has lost a rank and the other ranks are leaving it."""
        return self.phase == "changing" and self._loss_since is not None

    # ------------------------------------------------------------------ what comes from outside
    def tick(self, now: float) -> HowdahError | None:
        """Form, watch or leave a world; an error if the cluster never gave the job its workers."""
        if self.phase == "waiting":
            return self._wait(now)
        if self.phase == "running":
            self._watch(now)
        elif self.phase == "changing":
            return self._leave(now)
        return None

    def delay(self, seconds: float) -> None:
        """Discount the seconds for which the driver was stopped."""
        self._gang.delay(seconds)
        if self._loss_since is not None:
            self._loss_since += seconds

    def halt(self) -> None:
        """Form and leave no world until `restart`."""
        self.phase = "halted"

    def restart(self) -> None:
        """Wait for the workers of a new world, without the state of the previous one."""
        self.phase, self.slots = "waiting", []

    def left(self, member: Member, event: dict[str, Any], now: float) -> None:
        """Record that a rank has left the newest world, which all others leave too."""
        member.phase = "left"
        member.old_step = event.get("step")
        member.old_rank = member.rank if member.old_step is not None else None
        member.rank = None
        at_once = event.get("reason") == "lost"
        if self.phase == "running" or (self.phase == "changing" and at_once):
            self._change(now, at_once=at_once)  # the rank noticed the loss before the driver did

    def lost(self, loss: Loss, now: float) -> None:
        """Leave the world at once if an elastic job has lost one of its ranks."""
        self._explained = True
        if self.phase in ("running", "changing") and loss.rank is not None:
            self._change(now, at_once=True)

    def conclude(self) -> None:
        """Record that the steps are over, and cancel a change that came too late for them."""
        self.concluding = True
        if self.phase == "changing" and self._loss_since is None:
            self.phase = "running"

    # ------------------------------------------------------------------------------- by phase
    def _wait(self, now: float) -> HowdahError | None:
        target = self._workers.target
        if self._gang.pausing:
            if self._gang.pause_over(now):
                self._actions.event("requesting workers again")
                self._actions.keep(target)
            return None
        members = self._workers.members.values()
        for member in members:
            if member.phase == "ended":  # it finished before the others, which need it again
                self._workers.start(member, now)
        waiting = [m for m in members if m.phase in ("ready", "left")]
        survivors = [m for m in waiting if m.old_rank is not None]
        starting = [m for m in members if m.phase == "starting"]
        for member in starting:
            if now - member.started > _START_SECONDS:
                why = f"it has not started training after {_START_SECONDS:.0f} s"
                self._workers.kill(member, why)
        fewest = self._limits.fewest if self._limits.elastic else target
        if len(waiting) >= target:
            self._form(waiting)
        elif len(waiting) + len(starting) >= target:
            self._gang.complete()  # the other workers are still importing their framework
            if survivors and len(waiting) >= fewest:
                self._form(waiting)
        elif len(waiting) >= fewest and (survivors or self._all_lost_and_settled(waiting, now)):
            self._form(waiting)  # train with these instead of waiting: others join later
        elif self._gang.wait(now):
            if self._limits.elastic and len(waiting) >= fewest:
                self._form(waiting)
            else:
                return self._give_back(len(waiting) + len(starting), now)
        return None

    def _all_lost_and_settled(self, waiting: list[Member], now: float) -> bool:
        """True if all ranks were lost and no new worker has come for a while."""
        settled = all(now - member.ready_since > _SETTLE_SECONDS for member in waiting)
        return self.generation > 0 and settled

    def _watch(self, now: float) -> None:
        placed = self._workers.placed()
        self._end_hanging(placed, now)
        if any(member.phase == "placed" for member in placed):
            return
        if self.phase != "running" or not self._limits.elastic:
            return
        if self.concluding:
            return  # a change would repeat the last evaluation and the export
        target = self._workers.target
        if target < len(self.slots):
            self._change(now, at_once=False)
            return
        spare = [m for m in self._workers.members.values() if m.phase == "ready"]
        if not spare or len(self.slots) >= target:
            return
        longest = max(now - member.ready_since for member in spare)
        if len(self.slots) + len(spare) >= target or longest > _SETTLE_SECONDS:
            self._change(now, at_once=False)

    def _leave(self, now: float) -> HowdahError | None:
        pending = self._workers.placed()
        if not pending:
            if not self._explained:  # all ranks run, and they have lost contact or never had it
                self._budget.world_failed()
                self._actions.event(
                    f"generation {self.generation} failed though none of its ranks was lost: they"
                    " cannot reach each other over the network"
                )
            self.phase = "waiting"
            return self._wait(now)
        self._end_hanging(pending, now)
        if self._loss_since is None:
            return None  # ranks that wait only wait for others to evaluate, save or take a step
        for member in pending:
            if not member.heard(now):
                continue
            view = member.view(now)
            waited = min(view.phase_seconds, now - self._loss_since)
            if view.phase in ("wait", "join") and waited > self._limits.hang_seconds:
                self._workers.kill(
                    member,
                    f"it has not left a world that has lost a rank: phase {view.phase} for"
                    f" {view.phase_seconds:.0f} s",
                    follows=True,
                )
        return None

    # ------------------------------------------------------------------------------- decisions
    def _form(self, waiting: list[Member]) -> None:
        """Give ranks of the next world to the waiting workers; dismiss those beyond its size."""
        self._gang.complete()
        members = self._workers.members
        candidates = [world.Candidate(m.id, m.node, m.old_rank) for m in waiting]
        self.slots = world.assign(candidates, self._workers.target)
        self.generation += 1
        self._actions.begin(self.generation)
        for slot in self.slots:
            member = members[slot.member]
            member.phase, member.rank, member.old_rank = "placed", slot.rank, None
            self._workers.send(
                member,
                {"type": "world", "generation": self.generation, "slot": slot.__dict__},
            )
        chosen = {slot.member for slot in self.slots}
        for member in waiting:
            if member.id not in chosen:
                self._workers.dismiss(member, "the job needs fewer workers")
        self.phase = "running"
        self._explained, self._loss_since, self.concluding = False, None, False
        survivors = [slot for slot in self.slots if slot.keep]
        state = "the state of the newest checkpoint, if there is one"
        if survivors:
            step = members[survivors[0].member].old_step
            state = f"the state of step {step} which {len(survivors)} of them have in memory"
        self._actions.event(
            f"generation {self.generation}: {len(self.slots)} ranks, {state}",
            routine=self.generation == 1,
        )

    def _change(self, now: float, *, at_once: bool) -> None:
        """Order every rank to leave the world for the next at the end of its step, or at once where
        a rank is lost. The loss may come while an orderly change is under way."""
        if self._loss_since is not None:
            return
        self.phase = "changing"
        self._explained = self._explained or not at_once
        if at_once:  # no rank may wait for the lost one
            self._loss_since = now
            self._actions.begin(self.generation + 1)
        order = {"type": "change", "generation": self.generation + 1, "lost": at_once}
        for member in self._workers.placed():
            self._workers.send(member, order)

    def _end_hanging(self, placed: list[Member], now: float) -> None:
        views = self._workers.views(placed, now)
        all_heard = len(views) == len(placed)
        blocked = hang.blocked(views, self._limits.hang_seconds) if all_heard else None
        if blocked is not None and self._loss_since is None:
            why = (
                f"all {len(views)} ranks have waited in a collective for {blocked:.0f} s: the"
                " network between them drops data"
            )
            self._actions.event(why)
            self._budget.world_failed()
            self._explained = True
            if self._limits.elastic:
                self._change(now, at_once=True)
            else:
                for member in placed:
                    self._workers.kill(member, why)
            return
        self._workers.end_hanging(views)

    def _give_back(self, present: int, now: float) -> HowdahError | None:
        """Release all containers, since workers are missing; return an error after the last try."""
        pause = self._gang.give_up(now)
        seconds, target = self._limits.gang_seconds, self._workers.target
        if pause is None:
            return errors.no_gang(present, target, seconds, self._gang.tries)
        self._actions.event(
            f"{present} of {target} workers after {seconds:.0f} s: releasing all, and requesting"
            f" them again in {pause:.1f} s"
        )
        self._actions.keep(0)
        for member in self._workers.alive():
            self._workers.dismiss(member, "not all workers registered")
        return None
