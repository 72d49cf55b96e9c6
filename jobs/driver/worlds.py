"""A job's worlds: when one is formed and of which workers, when it is left for the next, which rank
hangs in it.

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
"""How long a worker that could join waits for others that are about to: a change costs seconds."""
_START_SECONDS = 300.0
"""A process that has not imported its framework after so long hangs."""

Phase = Literal["waiting", "running", "changing", "halted"]
"""Waiting for enough workers; training; leaving a world for the next; none is formed or left."""


class Gang:
    """All workers or none: how long a job waits for them, and the pause after a failed wait.

    Two jobs that each hold half of the containers they need would wait for each other for ever: a
    job that has waited long enough gives all of them back, and asks again after a pause of random
    length.

    Args:
        seconds: to wait for all workers.
        attempts: waits in all.
    """

    def __init__(self, seconds: float, attempts: int) -> None:
        self._seconds, self._attempts = seconds, attempts
        self.tries = 0
        self._deadline: float | None = None
        self._pause_until: float | None = None

    def wait(self, now: float) -> None:
        """A worker is missing: start the wait, if it has not started."""
        if self._deadline is None:
            self._deadline = now + self._seconds

    def delay(self, seconds: float) -> None:
        """Do not count the seconds for which the driver was stopped."""
        if self._deadline is not None:
            self._deadline += seconds

    def complete(self) -> None:
        """No worker is missing: end the wait."""
        self._deadline = None

    def expired(self, now: float) -> bool:
        """The wait has been long enough."""
        return self._deadline is not None and now > self._deadline

    def give_up(self, now: float) -> float | None:
        """Begin a pause; its seconds, or None after the last try."""
        self._deadline = None
        self.tries += 1
        if self.tries >= self._attempts:
            return None
        # Short against the wait, so that the cluster does not idle; longer from try to try.
        length = random.uniform(0.1, 1.0) * min(self._seconds, 5.0 * 2.0**self.tries)
        self._pause_until = now + length
        return length

    @property
    def pausing(self) -> bool:
        """All containers have been given back, for now."""
        return self._pause_until is not None

    def pause_over(self, now: float) -> bool:
        """The pause ends at this moment; True once."""
        if self._pause_until is None or now < self._pause_until:
            return False
        self._pause_until = None
        return True


class Worlds:
    """Forms a job's worlds one after the other.

    Args:
        workers: of the job.
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
        """It is known why the newest world was left."""
        self._loss_since: float | None = None
        """When the newest world was known to have lost a rank; None: it has not."""
        self._concluding = False
        """The newest world's steps are over: it evaluates, exports and ends."""

    @property
    def pausing(self) -> bool:
        """All containers have been given back; workers are asked for again after a pause."""
        return self._gang.pausing

    @property
    def concluding(self) -> bool:
        """The newest world's steps are over: it evaluates, exports and ends."""
        return self._concluding

    @property
    def broken(self) -> bool:
        """The newest world has lost a rank, and the other ranks are leaving it."""
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
        """Do not count the seconds for which the driver was stopped."""
        self._gang.delay(seconds)
        if self._loss_since is not None:
            self._loss_since += seconds

    def halt(self) -> None:
        """Form and leave no world until `restart`."""
        self.phase = "halted"

    def restart(self) -> None:
        """Wait for the workers of a new world, without the state of the one before."""
        self.phase, self.slots = "waiting", []

    def left(self, member: Member, event: dict[str, Any], now: float) -> None:
        """A rank has left the newest world; all others leave it with that."""
        member.phase = "left"
        member.old_step = event.get("step")
        member.old_rank = member.rank if member.old_step is not None else None
        member.rank = None
        lost = event.get("reason") == "lost"
        if self.phase == "running" or (self.phase == "changing" and lost):
            self._change(now, lost=lost)  # this rank met the loss before the driver knew of it

    def lost(self, loss: Loss, now: float) -> None:
        """An elastic job has lost a worker: the world that had it as a rank is left at once."""
        self._explained = True
        if self.phase in ("running", "changing") and loss.rank is not None:
            self._change(now, lost=True)

    def conclude(self) -> None:
        """The steps are over. A change that was ordered too late to be followed is called off."""
        self._concluding = True
        if self.phase == "changing" and self._loss_since is None:
            self.phase = "running"

    # ------------------------------------------------------------------------------- by phase
    def _wait(self, now: float) -> HowdahError | None:
        wanted = self._workers.wanted
        if self._gang.pausing:
            if self._gang.pause_over(now):
                self._actions.event("asking for workers again")
                self._actions.keep(wanted)
            return None
        members = self._workers.members.values()
        for member in members:
            if member.phase == "ended":  # done before the others, which need it again
                self._workers.start(member, now)
        waiting = [m for m in members if m.phase in ("ready", "left")]
        survivors = [m for m in waiting if m.old_rank is not None]
        starting = [m for m in members if m.phase == "starting"]
        for member in starting:
            if now - member.started > _START_SECONDS:
                why = f"it has not started training after {_START_SECONDS:.0f} s"
                self._workers.kill(member, why)
        fewest = self._limits.fewest if self._limits.elastic else wanted
        if len(waiting) >= wanted:
            self._form(waiting)
        elif len(waiting) + len(starting) >= wanted:
            self._gang.complete()  # the rest is on its way: imports take their time
            if survivors and len(waiting) >= fewest:
                self._form(waiting)
        elif len(waiting) >= fewest and (survivors or self._all_lost_and_settled(waiting, now)):
            self._form(waiting)  # their time is training's: others join later
        else:
            self._gang.wait(now)
            if self._gang.expired(now):
                if self._limits.elastic and len(waiting) >= fewest:
                    self._form(waiting)
                else:
                    return self._give_back(len(waiting) + len(starting), now)
        return None

    def _all_lost_and_settled(self, waiting: list[Member], now: float) -> bool:
        """After the loss of all ranks: no new worker has come for a while."""
        settled = all(now - member.ready_since > _SETTLE_SECONDS for member in waiting)
        return self.generation > 0 and settled

    def _watch(self, now: float) -> None:
        placed = self._workers.placed()
        self._end_hanging(placed, now)
        if any(member.phase == "placed" for member in placed):
            return
        if self.phase != "running" or not self._limits.elastic:
            return
        if self._concluding:
            return  # a change would have the last evaluation and the export done again
        wanted = self._workers.wanted
        if wanted < len(self.slots):
            self._change(now, lost=False)
            return
        spare = [m for m in self._workers.members.values() if m.phase == "ready"]
        if not spare or len(self.slots) >= wanted:
            return
        longest = max(now - member.ready_since for member in spare)
        if len(self.slots) + len(spare) >= wanted or longest > _SETTLE_SECONDS:
            self._change(now, lost=False)

    def _leave(self, now: float) -> HowdahError | None:
        pending = self._workers.placed()
        if not pending:
            if not self._explained:  # never reached each other, or lost touch: all are there
                self._budget.world_failed()
                self._actions.event(
                    f"generation {self.generation} fell apart, and none of its ranks was lost: they"
                    " do not reach each other over the network"
                )
            self.phase = "waiting"
            return self._wait(now)
        self._end_hanging(pending, now)
        if self._loss_since is None:
            return None  # a rank that waits only waits for those that evaluate, save or take a step
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
        """Give ranks of the next world to the workers that wait; dismiss those beyond its size."""
        self._gang.complete()
        members = self._workers.members
        candidates = [world.Candidate(m.id, m.node, m.old_rank) for m in waiting]
        self.slots = world.assign(candidates, self._workers.wanted)
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
                self._workers.dismiss(member, "fewer workers are wanted")
        self.phase = "running"
        self._explained, self._loss_since, self._concluding = False, None, False
        kept = [slot for slot in self.slots if slot.keep]
        state = "the state of the newest checkpoint, if there is one"
        if kept:
            step = members[kept[0].member].old_step
            state = f"the state of step {step} in the memory of {len(kept)} of them"
        self._actions.event(f"generation {self.generation}: {len(self.slots)} ranks, {state}")

    def _change(self, now: float, *, lost: bool) -> None:
        """Have every rank leave the world for the next: at the end of its step or, where a rank is
        lost, at once. The loss may come while an orderly change is under way."""
        if self._loss_since is not None:
            return
        self.phase = "changing"
        self._explained = self._explained or not lost
        if lost:  # no rank may wait for the lost one
            self._loss_since = now
            self._actions.begin(self.generation + 1)
        order = {"type": "change", "generation": self.generation + 1, "lost": lost}
        for member in self._workers.placed():
            self._workers.send(member, order)

    def _end_hanging(self, placed: list[Member], now: float) -> None:
        views = self._workers.views(placed, now)
        all_heard = len(views) == len(placed)
        blocked = hang.blocked(views, self._limits.hang_seconds) if all_heard else None
        if blocked is not None and self._loss_since is None:
            why = (
                f"all {len(views)} ranks have waited in a collective for {blocked:.0f} s: what they"
                " send each other does not arrive"
            )
            self._actions.event(why)
            self._budget.world_failed()
            self._explained = True
            if self._limits.elastic:
                self._change(now, lost=True)
            else:
                for member in placed:
                    self._workers.kill(member, why)
            return
        self._workers.end_hanging(views)

    def _give_back(self, present: int, now: float) -> HowdahError | None:
        """Not all workers came in time: give all containers back. An error after the last try."""
        pause = self._gang.give_up(now)
        seconds, wanted = self._limits.gang_seconds, self._workers.wanted
        if pause is None:
            return errors.no_gang(present, wanted, seconds, self._gang.tries)
        self._actions.event(
            f"{present} of {wanted} workers after {seconds:.0f} s: all given back, asking again"
            f" in {pause:.1f} s"
        )
        self._actions.keep(0)
        for member in self._workers.alive():
            self._workers.dismiss(member, "not all workers came")
        return None
