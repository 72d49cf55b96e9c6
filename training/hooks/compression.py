"""How the gradients of a world are compressed, and which steps send all that int8 holds back.

int8 holds back what it rounds off (training/optim/messages_torch.py), differently on each rank. A
state that is kept must not depend on that: the step before a checkpoint, an elastic job's commit,
an evaluation or another world sends its gradient and what is held back in float32. So checkpoints
have nothing of it, fit any number of ranks, and a run that resumes has the bits of one that was not
interrupted there. Rank 0 alone knows when a checkpoint is due by the clock, and any rank may be
told to stop: such a rank puts a flag into one step's sum, and all ranks act after the next step.

`auto` measures a run's first steps between nodes, in float32 after the backward pass, and chooses
what `howdah plan` (training/planning/scaling.py) predicts to pay. The choice is part of the state:
a run that resumes, in whatever world, keeps it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from howdah.training.checkpoint.elastic_state import ElasticState
from howdah.training.checkpoint.state import TrainState
from howdah.training.comm.base import Comm, network_message
from howdah.training.hooks.saver import CheckpointSaver
from howdah.training.planning import scaling
from howdah.training.preparation.job import TrainingJob
from howdah.training.run.run import Run

_WARM, _MEASURED = 3, 8
"""Steps of `auto`: not counted, measured."""


def numbers_of(job: TrainingJob, state: TrainState) -> str:
    """The numbers that gradients are sent in: none (float32), bf16 or int8."""
    key = job.config.training.gradient_compression
    return key if key != "auto" else state.compression or "none"


class Compression:
    """Gradient compression in one world. Every rank enters the constructor.

    Args:
        elements: number of a rank's gradients that are sent dense.
        coding_seconds: returns the seconds that a rank's processor takes to code one gradient in
            these numbers, once, and to read it twice.
    Attributes:
        numbers: what gradients are sent in now.
        whole: True if the step under way holds nothing back; equal on all ranks.
    """

    def __init__(
        self,
        job: TrainingJob,
        comm: Comm,
        run: Run,
        memory: ElasticState,
        saver: CheckpointSaver,
        state: TrainState,
        *,
        elements: int,
        coding_seconds: Callable[[str], float],
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._job, self._comm, self._run, self._memory = job, comm, run, memory
        self._saver, self._state = saver, state
        self._elements, self._coding_seconds, self._now = elements, coding_seconds, now
        self.numbers = numbers_of(job, state)
        auto = job.config.training.gradient_compression == "auto"
        self.measures = auto and state.compression is None and comm.overlaps(on_gpu=False)
        """True while `auto` measures: then sums come after the backward pass."""
        self._steps: list[tuple[float, float, int]] = []
        """(seconds of computing, seconds of the sums, micro-batches) of each step measured."""
        self._sums, self._marked, self._waited = 0.0, now(), comm.waits.total
        if auto and state.compression is not None:
            run.say(f"gradients cross the network in {_named(self.numbers)}, as chosen before")
            self._note()
        self.whole = self._of_next(False)

    @property
    def due(self) -> bool:
        """True if this rank knows a reason for the step after the one under way to be whole."""
        if self.numbers != "int8":
            return False
        # A checkpoint that is due by the clock has to wait if the step under way is not whole.
        next_, in_epoch = self._state.step + 1, int(self._state.plan["step"]) + 1
        return self._kept_after(2) or (not self.whole and self._saver.is_time(next_, in_epoch))

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Around a step's sums."""
        before = self._comm.waits.total
        yield
        self._sums = self._comm.waits.total - before

    def step_done(self, agreed: bool, micros: int) -> bool:
        """Decide about the next step. Every rank enters, once the state has advanced.

        Args:
            agreed: a rank has said `due`, or that it stops or leaves this world.
            micros: micro-batches of the step on this rank.
        Returns:
            True if `numbers` has changed.
        """
        if not self.measures:
            self.whole = self.numbers != "int8" or agreed
            return False
        now, waited = self._now(), self._comm.waits.total
        computing = now - self._marked - (waited - self._waited)
        self._steps.append((computing, self._sums, micros))
        self._marked, self._waited = now, waited
        if len(self._steps) < _WARM + _MEASURED:
            return False
        self._choose()
        self.measures = False
        self.whole = self._of_next(agreed)
        return self.numbers != "none"

    def _choose(self) -> None:
        comm, steps = self._comm, {}
        levels = comm.has_levels()  # every rank enters
        if comm.rank == 0:
            computing, sums, micros = (
                statistics.median(values) for values in zip(*self._steps[_WARM:], strict=True)
            )
            steps = scaling.compressed_steps(
                computing,
                sums,
                backward=scaling.BACKWARD * computing / micros,
                messages=max(1, round(self._elements / network_message(comm.size))),
                coding={
                    numbers: self._elements * self._coding_seconds(numbers)
                    for numbers in scaling.NUMBER_BYTES
                },
                crossing=scaling.exchange_crossing(comm.size, 1 if levels else comm.local_size),
            )
        steps = comm.broadcast_json(steps)
        self.numbers = self._state.compression = scaling.what_pays(steps)
        predicted = ", ".join(f"{_named(n)} {1000 * s:,.0f} ms" for n, s in steps.items())
        self._run.say(
            f"gradients cross the network in {_named(self.numbers)} from step"
            f" {self._state.step + 1} on; predicted steps: {predicted}"
        )
        self._note(step=self._state.step, predicted_seconds=steps)

    def _note(self, **more: object) -> None:
        if self._run.owned is not None:
            self._run.owned.file.note(gradient_compression={"chosen": self.numbers, **more})

    def _of_next(self, agreed: bool) -> bool:
        """True if the next step has to be whole. Every rank enters."""
        return self.numbers != "int8" or self._comm.agree(agreed or self._kept_after(1))

    def _kept_after(self, ahead: int) -> bool:
        """True if a state is kept or evaluated after a step by its number, whatever the clock is.

        Args:
            ahead: the step's number, counted from the last one done.
        """
        job, state = self._job, self._state
        step, rules = state.step + ahead, (job.config.evaluation, job.config.checkpoint)
        epoch, in_epoch = int(state.plan["epoch"]), int(state.plan["step"])
        for _ in range(ahead):
            epoch, in_epoch = job.planner.after(epoch, in_epoch)
        return (
            in_epoch == 0
            or step >= job.schedule.steps
            or any(rule.every_steps and step % rule.every_steps == 0 for rule in rules)
            or self._memory.due(step)
        )


def _named(numbers: str) -> str:
    return "float32" if numbers == "none" else numbers
