"""Which steps send all that int8 holds back, and what `auto` chooses."""

from __future__ import annotations

import types

import numpy as np
import pytest

from howdah.config.loader import from_dict
from howdah.training.checkpoint.elastic_state import ElasticState
from howdah.training.checkpoint.state import TrainState
from howdah.training.comm.base import SoloComm
from howdah.training.hooks.compression import Compression

STEPS, EPOCH = 23, 10


class TwoNodes(SoloComm):
    """Rank 0 of two, whose other rank has nothing to say."""

    size, rank = 2, 0

    def broadcast_json(self, obj, *, root=0):
        return obj


class World:
    """A loop's steps without gradients."""

    def __init__(self, compression: str, state: TrainState | None = None, **rules) -> None:
        self.lines: list[str] = []
        self.notes: dict = {}
        self.clock_due, self.seconds = False, 0.0
        self.state = state or TrainState(plan={"epoch": 0, "step": 0})
        config = from_dict({"training": {"gradient_compression": compression}, **rules})
        planner = types.SimpleNamespace(
            after=lambda epoch, step: (epoch, step + 1) if step + 1 < EPOCH else (epoch + 1, 0)
        )
        job = types.SimpleNamespace(
            config=config, planner=planner, schedule=types.SimpleNamespace(steps=STEPS)
        )
        owned = types.SimpleNamespace(
            file=types.SimpleNamespace(note=lambda **more: self.notes.update(more))
        )
        run = types.SimpleNamespace(say=self.lines.append, owned=owned)
        self.comm, self.memory = TwoNodes(), ElasticState(every=7)
        saver = types.SimpleNamespace(is_time=lambda step, in_epoch: self.clock_due)
        self.planner = planner
        self.compression = Compression(
            job, self.comm, run, self.memory, saver, self.state,
            elements=10**7, coding_seconds=lambda numbers: 0.0, now=lambda: self.seconds,
        )  # fmt: skip

    def step(self, *, stop: bool = False, sums: float = 0.0) -> bool:
        """One step. Returns True if its state may be kept."""
        compression, plan = self.compression, self.state.plan
        flags = np.array([stop, compression.due], float)
        self.seconds += 1.0
        with compression.timed():
            self.seconds += sums
            self.comm.waits.total += sums
        self.state.step += 1
        plan["epoch"], plan["step"] = self.planner.after(plan["epoch"], plan["step"])
        kept = compression.whole
        compression.step_done(any(flags > 0), 1)
        return kept

    def whole_steps(self, until: int = STEPS) -> set[int]:
        return {self.state.step for _ in range(until - self.state.step) if self.step()}


RULES = {"checkpoint": {"every_steps": 8}, "evaluation": {"every_steps": 6}}
KEPT = {6, 8, 10, 12, 16, 18, 20, STEPS}


def test_what_is_kept_or_evaluated_follows_a_step_that_sends_the_whole():
    """Checkpoints, evaluations, the ends of epochs and of the run."""
    assert World("int8", **RULES).whole_steps() == KEPT
    assert World("bf16", **RULES).whole_steps(5) == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("step", [0, 5, 8, 9])
def test_a_run_that_resumes_sends_the_whole_at_the_same_steps(step):
    state = TrainState(step=step, plan={"epoch": step // EPOCH, "step": step % EPOCH})
    assert World("int8", state, **RULES).whole_steps() == {one for one in KEPT if one > step}


def test_commits_of_an_elastic_job_follow_whole_steps_too():
    world = World("int8", checkpoint={"every_epoch": False})
    world.memory.on = True
    assert world.whole_steps() == {7, 10, 14, 20, 21, STEPS}


def test_a_stop_and_the_clock_wait_for_the_next_step():
    world = World("int8")
    assert not world.step() and not world.step(stop=True)
    assert world.step()  # the stop is acted upon now
    assert not world.step()
    world.clock_due = True
    assert not world.step() and world.step()
    world.clock_due = False  # saved
    assert not world.step()


def run_auto(state: TrainState | None = None, *, sums: float) -> World:
    world = World("auto", state)
    while world.compression.measures:
        assert world.compression.whole
        world.step(sums=sums)
    return world


@pytest.mark.parametrize(("sums", "numbers"), [(10.0, "int8"), (0.01, "none")])
def test_auto_chooses_once_by_measured_steps(sums, numbers):
    world = run_auto(sums=sums)
    assert world.state.step == 11
    assert world.compression.numbers == world.state.compression == numbers
    assert world.notes["gradient_compression"]["chosen"] == numbers
    assert world.notes["gradient_compression"]["step"] == 11
    assert "from step 12 on" in world.lines[-1]
    # A run that resumes measures nothing, and says what it goes on with.
    meta = world.state.to_meta()
    later = World("auto", TrainState.from_meta(meta))
    assert later.compression.numbers == numbers and not later.compression.measures
    assert "as chosen before" in later.lines[-1]
    assert TrainState.from_meta({k: v for k, v in meta.items() if k != "compression"}).step == 11


def test_auto_leaves_the_choice_open_within_a_node(monkeypatch):
    monkeypatch.setattr(TwoNodes, "local_size", 2)
    world = World("auto")
    assert not world.compression.measures and world.compression.numbers == "none"
    assert world.whole_steps(5) == {1, 2, 3, 4, 5}
    assert world.state.compression is None and world.lines == []
