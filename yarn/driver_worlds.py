"""A job's worlds: when one is formed and of whom, when it is left for the next, who hangs in it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from howdah.errors import HowdahError
from yarn import driver_errors, hang, world
from yarn.driver_members import Member
from yarn.driver_state import JobState

__all__ = ["JobWorlds"]

_SETTLE_SECONDS = 10.0
"""How long a worker that could join waits for others that are about to: a change costs seconds."""
_START_SECONDS = 300.0
"""A process that has not imported its framework after so long hangs."""


class JobWorlds(JobState, ABC):
    """What a job does in the modes waiting, running and changing."""

    @abstractmethod
    def fail(self, error: HowdahError, now: float, *, save: bool = False) -> None:
        """End the job with an error."""

    def _tick_waiting(self, now: float) -> None:
        if self.gang.pausing:
            if self.gang.pause_over(now):
                self.hands.event("asking for workers again")
                self.hands.keep(self.wanted)
            return
        for member in self.members.values():
            if member.phase == "ended":  # done before the others, who need it again
                self._start(member, now)
        waiting = [m for m in self.members.values() if m.phase in ("ready", "left")]
        survivors = [m for m in waiting if m.old_rank is not None]
        starting = [m for m in self.members.values() if m.phase == "starting"]
        for member in starting:
            if now - member.started > _START_SECONDS:
                self._kill(member, f"it has not started training after {_START_SECONDS:.0f} s")
        fewest = self.limits.fewest if self.limits.elastic else self.wanted
        if len(waiting) >= self.wanted:
            self._form(waiting)
        elif len(waiting) + len(starting) >= self.wanted:
            self.gang.complete()  # the rest is on its way: imports take their time
            if survivors and len(waiting) >= fewest:
                self._form(waiting)
        elif len(waiting) >= fewest and (survivors or self._all_lost_and_settled(waiting, now)):
            self._form(waiting)  # their time is training's: others join later
        else:
            self.gang.wait(now)
            if self.gang.expired(now):
                if self.limits.elastic and len(waiting) >= fewest:
                    self._form(waiting)
                else:
                    self._give_back(len(waiting) + len(starting), now)

    def _all_lost_and_settled(self, waiting: list[Member], now: float) -> bool:
        """After the loss of everybody: nobody has come for a while."""
        settled = all(now - member.ready_since > _SETTLE_SECONDS for member in waiting)
        return self.generation > 0 and settled

    def _tick_running(self, now: float) -> None:
        placed = self._placed()
        self._end_hanging(placed, now)
        if any(member.phase == "placed" for member in placed):
            return
        if self.mode != "running" or not self.limits.elastic:
            return
        if self._concluding or self.done_since is not None:
            return  # a change would have the last evaluation and the export done again
        if self.wanted < len(self.world):
            self._change(now, lost=False)
            return
        spare = [m for m in self.members.values() if m.phase == "ready"]
        if not spare or len(self.world) >= self.wanted:
            return
        longest = max(now - member.ready_since for member in spare)
        if len(self.world) + len(spare) >= self.wanted or longest > _SETTLE_SECONDS:
            self._change(now, lost=False)

    def _tick_changing(self, now: float) -> None:
        pending = self._placed()
        if not pending:
            if not self._explained:  # never reached each other, or lost touch: all are there
                self.ledger.restarts += 1
                self.hands.event(
                    f"generation {self.generation} fell apart, and none of its ranks was lost: they"
                    " do not reach each other over the network"
                )
            self._turn("waiting", now)
            self._tick_waiting(now)
            return
        self._end_hanging(pending, now)
        if self._loss_since is None:
            return  # a rank that waits only waits for those that evaluate, save or take a step
        for view in (member.view(now) for member in pending):
            waited = min(view.phase_seconds, now - self._loss_since)
            if view.phase in ("wait", "join") and waited > self.limits.hang_seconds:
                self._kill(
                    self.members[view.member],
                    f"it has not left a world that has lost a rank: phase {view.phase} for"
                    f" {view.phase_seconds:.0f} s",
                    follows=True,
                )

    def _form(self, waiting: list[Member]) -> None:
        """Give the next world to those who wait, and send away whom it has no place for."""
        self.gang.complete()
        candidates = [world.Candidate(m.id, m.node, m.old_rank) for m in waiting]
        self.world = world.assign(candidates, self.wanted)
        self.generation += 1
        self.hands.begin(self.generation)
        for slot in self.world:
            member = self.members[slot.member]
            member.phase, member.rank, member.old_rank = "placed", slot.rank, None
            self._tell(
                member,
                {"type": "world", "generation": self.generation, "slot": slot.__dict__},
            )
        chosen = {slot.member for slot in self.world}
        for member in waiting:
            if member.id not in chosen:
                self._dismiss(member)
        self._turn("running", self._last_tick)
        self._explained, self._loss_since, self._concluding = False, None, False
        kept = [slot for slot in self.world if slot.keep]
        state = "the state of the newest checkpoint, if there is one"
        if kept:
            step = self.members[kept[0].member].old_step
            state = f"the state of step {step} in the memory of {len(kept)} of them"
        self.hands.event(f"generation {self.generation}: {len(self.world)} ranks, {state}")

    def _change(self, now: float, *, lost: bool) -> None:
        """Have every rank leave the world for the next: at the end of its step or, where a rank is
        lost, at once. The loss may come while an orderly change is under way."""
        if self._loss_since is not None:
            return
        self._turn("changing", now)
        self._explained = self._explained or not lost
        if lost:  # no rank may wait for the lost one
            self._loss_since = now
            self.hands.begin(self.generation + 1)
        for member in self._placed():
            self._tell(member, {"type": "change", "generation": self.generation + 1, "lost": lost})

    def _left(self, member: Member, event: dict[str, Any]) -> None:
        member.phase = "left"
        member.old_step = event.get("step")
        member.old_rank = member.rank if member.old_step is not None else None
        member.rank = None
        lost = event.get("reason") == "lost"
        if self.mode == "running" or (self.mode == "changing" and lost):
            self._change(self._last_tick, lost=lost)  # it met the loss before we did

    def _end_hanging(self, placed: list[Member], now: float) -> None:
        views = [member.view(now) for member in placed]
        blocked = hang.blocked(views, self.limits.hang_seconds)
        if blocked is not None and self._loss_since is None:
            why = (
                f"all {len(views)} ranks have waited in a collective for {blocked:.0f} s: what they"
                " send each other does not arrive"
            )
            self.hands.event(why)
            self.ledger.restarts += 1
            self._explained = True
            if self.limits.elastic:
                self._change(now, lost=True)
            else:
                for member in placed:
                    self._kill(member, why)
            return
        verdicts = hang.hanging(views, self.limits.hang_seconds)
        for verdict in verdicts:
            member = self.members[verdict.member]
            if member.kill_reason is None:
                self.hands.event(
                    f"rank {verdict.rank} on {member.node} ({member.id}) hangs: {verdict.why}"
                )
                self._kill(member, f"it hangs: {verdict.why}")

    def _give_back(self, there: int, now: float) -> None:
        """Not all came in time: none is kept."""
        pause = self.gang.give_up(now)
        seconds = self.limits.gang_seconds
        if pause is None:
            self.fail(driver_errors.no_gang(there, self.wanted, seconds, self.gang.tries), now)
            return
        self.hands.event(
            f"{there} of {self.wanted} workers after {seconds:.0f} s: all given back, asking again"
            f" in {pause:.1f} s"
        )
        self.hands.keep(0)
        for member in self.members.values():
            if member.alive:
                member.phase = "gone"
                leave = {"type": "leave", "exit_code": 0, "why": "not all workers came"}
                self.hands.order(member.id, leave)
                self.hands.release(member.id)
