"""Elastic training: real driver, agents and processes on this machine, killed at chosen places.

Each fault runs with one framework by default; the other one in `make test-all`.
"""

from __future__ import annotations

import glob
import json
import os
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file

from howdah import storage
from howdah.data.splits.planner import Planner, PlanSpec
from howdah.data.splits.shards import ShardSet
from howdah.models.runs.metrics_log import read_metrics
from howdah.training.checkpoint.manager import Checkpoints
from tests.runs.jobs.local_jobs import ROOT, LocalJob
from tests.runs.training_runs import NO_DROPOUT, SETTINGS, train
from tests.runs.training_runs import _nested as nested
from tests.support.by_default import either

pytestmark = pytest.mark.mpi

LIMIT = 200  # seconds; detects a hang
STEPS, COMMIT = 40, 5


class Elastic(LocalJob):
    """A job with faults, and what came of it."""

    def __init__(self, directory, framework, dataset, base, faults=(), **settings) -> None:
        self.dataset = dataset
        self.rows_directory = os.path.join(directory, "rows")
        values = SETTINGS | NO_DROPOUT | {
            "data.dataset": dataset.path,
            "model.base": base,
            "training.framework": framework.partition(".")[0],
            "training.comm": "torch" if framework == "torch.distributed" else "auto",
            "training.max_steps": STEPS,
            "checkpoint.every_steps": None,
            "checkpoint.every_epoch": False,
            "evaluation.every_steps": 20,
            "job.commit_every": COMMIT,
            "job.workers": 2,
            "job.min_workers": 1,
            "job.max_workers": 3,
        } | settings  # fmt: skip
        limits = {name: values.pop(f"limit.{name}") for name in ("overlap", "fusion_groups")
                  if f"limit.{name}" in values}  # fmt: skip
        sections = nested(values)
        sections.pop("run", None)
        path = os.pathsep.join([os.path.join(ROOT, "tests", "workers", "elastic"), str(ROOT)])
        env = {
            "PYTHONPATH": path,
            "ELASTIC_FAULTS": json.dumps(list(faults)),
            "ELASTIC_ROWS": self.rows_directory,
        }
        super().__init__(directory, light=False, env=env, limits=limits, **sections)

    def finish(self) -> dict:
        """Wait for its good end; run.json."""
        code, verdict, status = self.end(LIMIT)
        shown = {key: value for key, value in status.items() if key != "lines"}
        assert code == 0, (verdict, shown, self.logs())
        assert status["state"] == "finished"
        run = storage.read_json(str(self.run_directory / "run.json"))
        assert run["status"] == "finished"
        return run

    def logs(self) -> str:
        paths = sorted(glob.glob(str(self.job / "containers" / "*" / "training.*.log")))
        return "\n".join(f"--- {path}\n{open(path).read()[-3000:]}" for path in paths)

    def taken(self) -> list[dict]:
        """The micro-batches that were begun: world, rank, size, step, ids, pid."""
        lines = []
        for path in glob.glob(os.path.join(self.rows_directory, "rows-*.jsonl")):
            with open(path) as file:
                lines += [json.loads(line) for line in file]
        return lines

    def struck(self) -> list[str]:
        return [name for name in os.listdir(self.rows_directory) if name.startswith("struck")]

    def losses(self) -> list[float]:
        lines = [line for line in read_metrics(str(self.run_directory)) if "split" not in line]
        steps = [line["step"] for line in lines]
        assert steps == list(range(1, len(steps) + 1))
        return [line["loss"] for line in lines]

    def check_rows(self, steps: int = STEPS) -> None:
        """Each step that counts learnt from the plan's rows: each row once an epoch."""
        shards = ShardSet(self.dataset, "train")
        spec = PlanSpec(dataset_hash=self.dataset.manifest_hash, split="train", seed=42,
                        global_batch_size=12)  # fmt: skip
        planner = Planner(shards.lengths, spec)
        taken = self.taken()
        for step in range(steps):
            world = max(line["world"] for line in taken if line["step"] == step)
            parts = [line for line in taken if (line["step"], line["world"]) == (step, world)]
            assert {line["rank"] for line in parts} == set(range(parts[0]["size"]))
            ids = sorted(one for line in parts for one in line["ids"])
            planned = planner.batch(*planner.at(step)).without_fillers()
            expected = sorted(
                shards.example(int(shard), int(row)).id.decode()
                for shard, row in zip(planned.shard, planned.row, strict=True)
            )
            assert ids == expected, f"step {step}"

    def repeated(self) -> list[int]:
        """Steps that were begun in more than one world, by the world that repeated them."""
        worlds: dict[int, set[int]] = {}
        for line in self.taken():
            worlds.setdefault(line["step"], set()).add(line["world"])
        return sorted(step for step, losses in worlds.items() if len(losses) > 1)


@pytest.fixture
def job(tmp_path, tiny_dataset, tiny_model_dir):
    """Makes elastic jobs of two workers, and ends them."""
    made: list[Elastic] = []

    def make(framework: str, *faults: dict, **settings) -> Elastic:
        directory = str(tmp_path / f"job{len(made)}")
        made.append(Elastic(directory, framework, tiny_dataset, tiny_model_dir, faults, **settings))
        return made[-1]

    yield make
    for one in made:
        one.__exit__()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, tiny_dataset, tiny_model_dir):
    """Losses of the same run, two ranks and no fault, by framework."""
    losses_of: dict[str, list[float]] = {}

    def losses(framework: str) -> list[float]:
        if framework not in losses_of:
            directory = str(tmp_path_factory.mktemp("undisturbed") / framework)
            with Elastic(directory, framework, tiny_dataset, tiny_model_dir) as one:
                one.finish()
                assert one.repeated() == []
                one.check_rows()
                losses_of[framework] = one.losses()
        return losses_of[framework]

    return losses


def world_of(one: Elastic, pid: int) -> set[int]:
    return {line["world"] for line in one.taken() if line["pid"] == pid}


# ------------------------------------------------------------------------------- killed ranks
@pytest.mark.parametrize(
    ("framework", "rank"),
    [
        # In every run on YARN: tests/yarn/test_faults.py
        pytest.param("torch", 0, marks=pytest.mark.full),
        pytest.param("torch", 1, marks=pytest.mark.full),
        pytest.param("torch.distributed", 0, marks=pytest.mark.full),
        ("torch.distributed", 1),
        pytest.param("tensorflow", 0, marks=pytest.mark.full),
        ("tensorflow", 1),
    ],
)
def test_a_killed_rank_is_replaced_and_nothing_is_learnt_twice(job, undisturbed, framework, rank):
    one = job(framework, {"where": "reduce", "rank": rank, "step": 23, "world": 1})
    run = one.finish()
    assert one.struck() == [f"struck-0-{rank}"]
    one.check_rows()
    repeated = one.repeated()
    assert 0 < len(repeated) <= COMMIT, repeated  # the step that broke among them
    np.testing.assert_allclose(one.losses(), undisturbed(framework), atol=2e-4)
    # The survivor's process went on, as rank 0.
    survivor = {line["pid"] for line in one.taken() if line["world"] == 1
                and line["rank"] != rank}.pop()  # fmt: skip
    later = [line for line in one.taken() if line["world"] > 1 and line["pid"] == survivor]
    assert {line["rank"] for line in later} == {0}
    assert [a["attempt"] for a in run["attempts"]] == ([1, 2] if rank == 0 else [1])
    assert one.status["restarts"] == 1
    # The export is whole, and says so.
    exported = load_file(str(one.run_directory / "export" / "model.safetensors"))
    assert all(np.isfinite(array).all() for array in exported.values())


@pytest.mark.full
@pytest.mark.parametrize("framework", ["torch", "torch.distributed"])
@pytest.mark.parametrize("message", range(4))
@pytest.mark.parametrize("compression", ["none", "bf16", "int8"])
def test_a_rank_killed_in_each_message_of_the_backward_pass(
    job, undisturbed, framework, message, compression
):
    killed = {"where": "message", "message": message, "rank": 1, "step": 23, "world": 1}
    between_nodes = {"limit.overlap": True, "limit.fusion_groups": 4}
    one = job(framework, killed, **between_nodes, **{"training.gradient_compression": compression})
    one.finish()
    assert one.struck() == ["struck-0-1"]
    one.check_rows()
    assert 0 < len(one.repeated()) <= COMMIT
    bound = 2e-4 if compression == "none" else 1e-2
    np.testing.assert_allclose(one.losses(), undisturbed(framework), atol=bound)


@pytest.mark.parametrize("framework", either("torch"))
def test_all_ranks_killed_go_on_from_the_newest_checkpoint(job, undisturbed, framework):
    both = [{"where": "step", "rank": rank, "step": 27, "world": 1} for rank in (0, 1)]
    one = job(framework, *both, **{"checkpoint.every_steps": 10, "checkpoint.keep": 9})
    run = one.finish()
    # The save of step 20 has a tenth of a second until step 27: what was whole by then counts.
    events = [event["what"] for event in one.status["events"]]
    until = next(number for number, what in enumerate(events) if " was lost: " in what)
    whole = [int(what.split()[-1]) for what in events[:until] if what.startswith("checkpoint of")]
    resumed = run["attempts"][-1]["resumed_at_step"]
    assert resumed in (10, 20) and resumed >= max(whole)
    one.check_rows()
    np.testing.assert_allclose(one.losses(), undisturbed(framework), atol=2e-4)


@pytest.mark.parametrize(
    ("framework", "rank"),
    [
        pytest.param("tensorflow", 0, marks=pytest.mark.full),
        ("torch", 0),
        pytest.param("tensorflow", 1, marks=pytest.mark.full),
        pytest.param("torch", 1, marks=pytest.mark.full),
    ],
)
def test_a_checkpoint_is_a_commit(job, undisturbed, framework, rank, tmp_path):
    # No step but those of checkpoints is committed, and only by rank 0: the others know of it by
    # rank 0's memory, or without rank 0 by the checkpoint itself.
    saved = str(tmp_path / "job0" / "run" / "checkpoints" / "step-20")
    killed = {"where": "step", "rank": rank, "step": 27, "world": 1, "after": saved}
    settings = {"checkpoint.every_steps": 20, "evaluation.every_steps": 100}
    one = job(framework, killed, **settings, **{"job.commit_every": 1000})
    run = one.finish()
    assert one.struck() == [f"struck-0-{rank}"]
    repeated = one.repeated()
    assert repeated and min(repeated) == 20, repeated
    first, *later = run["attempts"]
    assert first["resumed_at_step"] == 0
    if rank == 0:
        assert [(a["resumed_at_step"], a["resumed_from"][-8:]) for a in later] == [(20, "/step-20")]
    else:
        assert later == []
    one.check_rows()
    np.testing.assert_allclose(one.losses(), undisturbed(framework), atol=2e-4)


# ------------------------------------------------------------------- outside of the steps
@pytest.mark.full
@pytest.mark.parametrize("framework", either("torch"))
@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_rank_killed_in_an_evaluation_costs_no_step(job, undisturbed, framework, rank):
    one = job(framework, {"where": "evaluate", "rank": rank, "step": 19, "world": 1})
    run = one.finish()
    assert one.struck()
    assert one.repeated() == []  # the step before it is remembered
    one.check_rows()
    np.testing.assert_allclose(one.losses(), undisturbed(framework), atol=2e-4)
    assert set(run["metrics"]) == {"validation"}


@pytest.mark.full  # in every run at fixed size: tests/training/test_faults.py
@pytest.mark.parametrize("framework", either("torch"))
def test_a_rank_0_killed_while_it_writes_a_checkpoint(job, undisturbed, framework):
    one = job(framework, {"where": "save", "rank": 0, "world": 1}, **{"evaluation.every_steps": 20})
    run = one.finish()
    assert one.struck()
    one.check_rows()
    np.testing.assert_allclose(one.losses(), undisturbed(framework), atol=2e-4)
    saved = Checkpoints(str(one.run_directory / "checkpoints"))
    assert run["best_step"] in {one.step for one in saved.list()}
    names = os.listdir(str(one.run_directory / "checkpoints"))
    assert all(name.startswith("step-") and name.count(".") == 0 for name in names), names


@pytest.mark.parametrize("framework", either("torch"))
def test_a_save_that_was_cut_short_is_made_up_for_at_once(job, undisturbed, framework, tmp_path):
    # Rank 0 is stopped while it writes step 20, before anything is whole. The others go on from
    # memory; then, once the save that makes up for it is whole, all are killed, four steps before
    # the next save by the step's number.
    stopped = {"where": "save", "rank": 0, "world": 1, "signal": signal.SIGSTOP}
    saved = str(tmp_path / "job0" / "run" / "checkpoints" / "step-[0-9][0-9]")
    killed = [
        {"where": "step", "rank": rank, "step": 36, "world": 2, "after": saved} for rank in (0, 1)
    ]
    settings = {"checkpoint.every_steps": 20, "checkpoint.keep": 9, "evaluation.every_steps": 100}
    one = job(framework, stopped, *killed, **settings,
              **{"job.min_workers": 2, "job.hang_seconds": 10})  # fmt: skip
    run = one.finish()
    assert len(one.struck()) == 3
    first, second, third = run["attempts"]
    assert first["resumed_at_step"] == 0
    assert second["resumed_from"] == "memory"
    again, step = second["resumed_at_step"], third["resumed_at_step"]
    assert again >= 20 and step == again + 1  # saved at the end of the first step
    one.check_rows()
    np.testing.assert_allclose(one.losses(), undisturbed(framework), atol=2e-4)


@pytest.mark.full
@pytest.mark.parametrize(
    "framework", either("tensorflow", ("tensorflow", "torch", "torch.distributed"))
)
@pytest.mark.parametrize(
    "where", ["share", pytest.param("join", marks=pytest.mark.full)]
)  # fmt: skip
def test_a_second_rank_killed_while_the_next_world_forms(job, undisturbed, framework, where):
    # In the second world the survivor is rank 0; the newcomer dies.
    first = {"where": "step", "rank": 1, "step": 22, "world": 1}
    second = {"where": where, "rank": 1, "world": 2}
    one = job(framework, first, second, **{"job.min_workers": 2})
    one.finish()
    assert len(one.struck()) == 2
    one.check_rows()
    np.testing.assert_allclose(one.losses(), undisturbed(framework), atol=2e-4)


@pytest.mark.full
@pytest.mark.parametrize("framework", either("torch"))
@pytest.mark.parametrize("where", ["export", pytest.param("evaluate", marks=pytest.mark.full)])
def test_a_rank_0_killed_at_the_end_leaves_it_to_another(job, framework, where):
    faults = {"where": where, "rank": 0, "step": STEPS - 1, "world": 1}
    one = job(framework, faults)
    run = one.finish()
    assert one.struck()
    assert run["steps"] == STEPS
    assert os.path.exists(one.run_directory / "export" / "howdah.json")
    assert os.path.exists(one.run_directory / "report.html")
    one.check_rows()


@pytest.mark.full
@pytest.mark.parametrize("framework", either("torch"))
@pytest.mark.parametrize("where", ["step", "export"])
def test_adapters_and_the_base_s_weights_outlive_rank_0(
    job, framework, where, tmp_path, tiny_dataset, tiny_model_dir
):
    """The checkpoint has no frozen weight: the other rank has them in its memory. At the end the
    adapters have been merged into the model's weights when the next world begins."""
    saved = str(tmp_path / "job0" / "run" / "checkpoints" / "step-20")
    fault = {"where": where, "rank": 0, "step": 27 if where == "step" else STEPS - 1, "world": 1}
    settings = {"training.lora.rank": 4, "evaluation.every_steps": 100, "job.commit_every": 1000,
                "checkpoint.every_steps": 20}  # fmt: skip
    one = job(framework, fault | ({"after": saved} if where == "step" else {}), **settings)
    one.finish()
    assert one.struck()
    whole = train(str(tmp_path / "whole"), dataset=tiny_dataset.path, base=tiny_model_dir,
                  framework=framework, settings=NO_DROPOUT | {
                      "training.lora.rank": 4, "training.max_steps": STEPS,
                      "evaluation.every_steps": 100,
                  })  # fmt: skip
    np.testing.assert_allclose(one.losses(), whole.losses(), atol=2e-4)
    exported, theirs = (
        load_file(os.path.join(directory, "export", "model.safetensors"))
        for directory in (one.run_directory, whole.directory)
    )
    for name, array in exported.items():
        np.testing.assert_allclose(array, theirs[name], atol=2e-3, err_msg=name)


# ----------------------------------------------------------------------- shrinking and growing
@pytest.mark.full  # in every run with light workers: tests/jobs/test_local.py
@pytest.mark.parametrize("framework", either("torch"))
def test_a_job_grows_and_shrinks_on_request(job, framework):
    one = job(framework, **{"training.max_steps": 100_000, "evaluation.every_steps": 100_000})
    one.wait(lambda s: (s["step"] or 0) > 10, "ten steps", LIMIT)
    one.ask(type="scale", workers=3)
    one.wait(lambda s: s["world_size"] == 3 and s["generation"] > 1, "three ranks", LIMIT)
    grown = one.wait(lambda s: any(line["size"] == 3 for line in one.taken()), "steps", LIMIT)
    one.ask(type="scale", workers=1)
    one.wait(lambda s: s["world_size"] == 1, "one rank", LIMIT)
    one.wait(lambda s: any(line["size"] == 1 for line in one.taken()), "steps alone", LIMIT)
    one.ask(type="scale", workers=2)
    one.wait(lambda s: s["world_size"] == 2 and s["generation"] > grown["generation"] + 1,
             "two ranks again", LIMIT)  # fmt: skip
    reached = max(line["step"] for line in one.taken())
    one.wait(lambda s: (s["step"] or 0) > reached, "steps of two again", LIMIT)
    one.ask(type="stop", save=True)
    code, _, status = one.end(LIMIT)
    assert code == 143, status["error"]
    assert one.repeated() == []  # who leaves in order remembers the last step
    saved = Checkpoints(str(one.run_directory / "checkpoints")).list()[0].step
    one.check_rows(saved)
    assert len(one.losses()) == saved
    # One process was there from the first world to the last.
    sizes = {}
    for line in one.taken():
        sizes.setdefault(line["pid"], set()).add(line["size"])
    assert {1, 2, 3} in sizes.values()
