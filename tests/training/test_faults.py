"""Real jobs that are interrupted, torn down or killed: what they say, keep and leave behind.

By default each fault runs once, with one framework and carrier; all pairs run in `make test-all`.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from howdah.models.runs.metrics_log import read_metrics
from howdah.training.checkpoint.manager import Checkpoints
from tests.fixtures.launched import Job, jobs, table
from tests.runs.training_runs import ROOT, SETTINGS, launcher
from tests.support.waiting import wait_until

pytestmark = pytest.mark.mpi


def finish(start, framework: str, kind: str, beyond: int) -> Job:
    """Start the run again up to a few steps beyond `beyond`; it must go on from there."""
    job = start(framework, kind, **{"training.max_steps": beyond + 3})
    assert job.end() == 0, job.stderr
    assert f"resuming from checkpoint step-{beyond}" in job.stderr
    record = job.run_json()
    assert (record["status"], record["steps"]) == ("finished", beyond + 3)
    assert record["attempts"][-1]["resumed_at_step"] == beyond
    logged = [line["step"] for line in read_metrics(job.directory) if "split" not in line]
    assert logged == sorted(set(logged))
    assert logged[-1] == beyond + 3
    return job


# ------------------------------------------------------------------------------ interruptions
@pytest.mark.parametrize(("framework", "kind"), jobs(("torch", "torch")))
def test_sigterm_saves_the_step_says_so_and_the_run_goes_on_from_it(start, framework, kind):
    job = start(framework, kind)
    job.wait_for_checkpoint()
    job.process.send_signal(signal.SIGTERM)
    assert job.end() == 143, job.stderr
    job.wait_until_nothing_is_left()
    newest = job.steps_saved()[0]
    assert f"the newest checkpoint is step-{newest}" in job.stderr.split("howdah: ")[-1]
    assert "Traceback" not in job.stderr
    assert job.run_json()["status"] == "interrupted"
    # The step that was going on is saved, not the one that was saved last by rule.
    with open(os.path.join(job.directory, "checkpoints", f"step-{newest}", "meta.json")) as file:
        assert json.load(file)["step"] == newest
    if framework == "torch":
        finish(start, framework, kind, newest)


@pytest.mark.parametrize(("framework", "kind"), jobs(("torch", "horovod")))
def test_ctrl_c_is_130(start, framework, kind):
    job = start(framework, kind)
    job.wait_for_checkpoint()
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130, job.stderr
    job.wait_until_nothing_is_left()
    assert "training was interrupted" in job.stderr.split("howdah: ")[-1]
    assert "Traceback" not in job.stderr


# ------------------------------------------------------------------------------ killed ranks
@pytest.mark.parametrize(("framework", "kind"), jobs(("tensorflow", "horovod")))
def test_a_killed_rank_is_named_and_the_run_goes_on_from_a_whole_checkpoint(start, framework, kind):
    job = start(framework, kind, **{"job.max_restarts": 0})
    job.wait_for_checkpoint()
    os.kill(job.rank(1), signal.SIGKILL)
    assert job.end() == 6, job.stderr
    job.wait_until_nothing_is_left()
    last = job.stderr.split("howdah: ")[-1]
    assert last.startswith("rank 1 on ") and "was lost" in last, job.stderr
    assert "Traceback" not in job.stderr
    assert job.run_json()["status"] == "failed"
    newest = job.steps_saved()[0]
    assert f"step-{newest}" in last
    if framework == "torch":
        finish(start, framework, kind, newest)


@pytest.mark.parametrize("elastic", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize(("framework", "kind"), jobs(("torch", "torch")))
def test_a_killed_rank_is_replaced(start, framework, kind, elastic):
    """An elastic job goes on from memory, one of a fixed size from its newest checkpoint."""
    job = start(framework, kind, **({"job.min_workers": 1} if elastic else {}))
    job.wait_for_checkpoint()
    before, survivor = job.status(), job.rank(0)
    os.kill(job.rank(1), signal.SIGKILL)

    def goes_on() -> bool:
        assert job.process.poll() is None, job.end() or job.stderr
        now = job.status()
        newer = now["generation"] > before["generation"] and now["world_size"] == 2
        return newer and (now["step"] or 0) > (before["step"] or 0)

    wait_until(goes_on, seconds=200)
    assert (job.rank(0) == survivor) == elastic
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130, job.stderr
    job.wait_until_nothing_is_left()
    assert "rank 1" in job.stderr and "was lost" in job.stderr


@pytest.mark.parametrize(("framework", "kind"), jobs(("torch", "torch")))
def test_a_killed_rank_0_leaves_a_whole_checkpoint(start, framework, kind):
    job = start(framework, kind, **{"job.max_restarts": 0})
    job.wait_for_checkpoint()
    os.kill(job.rank(0), signal.SIGKILL)
    assert job.end() == 6, job.stderr
    job.wait_until_nothing_is_left()
    assert re.match("rank 0 on .* was lost", job.stderr.split("howdah: ")[-1])
    directory = os.path.join(job.directory, "checkpoints")
    latest = Checkpoints(directory).latest()
    assert latest.step >= SETTINGS["checkpoint.every_steps"]


@pytest.mark.parametrize(("framework", "kind"), jobs(("torch", "torch")))
def test_when_howdah_train_is_killed_no_rank_lives_on(start, framework, kind):
    """They save and end, although nothing is left to ask them."""
    job = start(framework, kind, **{"checkpoint.grace_seconds": 300})
    job.wait_for_checkpoint()
    job.process.kill()
    job.process.wait()
    job.wait_until_nothing_is_left()
    assert Checkpoints(os.path.join(job.directory, "checkpoints")).latest().step > 0


# ----------------------------------------------------------------------------------- one rank
def test_ctrl_c_of_one_rank_saves_and_the_run_goes_on(start):
    job = start("torch", "auto", ranks=1)
    job.wait_for_checkpoint()
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130, job.stderr
    job.wait_until_nothing_is_left()
    last = job.stderr.split("howdah: ")[-1]
    newest = job.steps_saved()[0]
    assert last.startswith("training was interrupted")
    assert f"the newest checkpoint is step-{newest}" in last
    assert "Traceback" not in job.stderr
    assert job.run_json()["status"] == "interrupted"
    again = start("torch", "auto", ranks=1, **{"training.max_steps": newest + 3})
    assert again.end() == 0, again.stderr
    assert f"resuming from checkpoint step-{newest}" in again.stderr


def test_one_rank_that_is_killed_is_named(start):
    job = start("torch", "auto", ranks=1)
    job.wait_for_checkpoint()
    os.kill(job.rank(0), signal.SIGKILL)
    assert job.end() == 6, job.stderr
    job.wait_until_nothing_is_left()
    assert job.stderr.split("howdah: ")[-1].startswith("rank 0 was lost, and training stopped")
    assert job.run_json()["status"] == "failed"


def test_when_howdah_train_is_killed_its_one_rank_saves_and_ends(start):
    job = start("torch", "auto", ranks=1, **{"checkpoint.grace_seconds": 300})
    job.wait_for_checkpoint()
    job.process.kill()
    job.process.wait()
    job.wait_until_nothing_is_left()
    assert job.run_json()["status"] == "interrupted"  # which the rank itself has written
    logged = [line["step"] for line in read_metrics(job.directory) if "split" not in line]
    assert job.steps_saved()[0] == logged[-1]


def test_a_save_of_one_rank_that_hangs_ends_with_its_time(start):
    """After the end of `howdah train`, whose guard is left."""
    stuck = os.path.join(ROOT, "tests", "workers", "slow")
    env = {"PYTHONPATH": os.pathsep.join([stuck, ROOT]), "SLOW": json.dumps({"save": 3600.0})}
    few = {"checkpoint.every_steps": None, "checkpoint.every_epoch": False,
           "checkpoint.every_minutes": None, "checkpoint.grace_seconds": 1}  # fmt: skip
    job = start("torch", "auto", ranks=1, env=env, **few)
    wait_until(lambda: os.path.exists(os.path.join(job.directory, "metrics.jsonl")), seconds=200)
    job.process.kill()
    job.process.wait()
    job.wait_until_nothing_is_left()
    assert job.steps_saved() == []


# ------------------------------------------------------------------------------ stopped ranks
@pytest.mark.parametrize(("framework", "kind"), jobs(("torch", "horovod")))
def test_an_interrupt_ends_a_job_one_of_whose_ranks_is_stopped(start, framework, kind):
    """It cannot save, and neither can the others without it: all end when their time is over."""
    job = start(framework, kind, **{"checkpoint.grace_seconds": 3})
    job.wait_for_checkpoint()
    os.kill(job.rank(1), signal.SIGSTOP)
    job.process.send_signal(signal.SIGINT)
    assert job.end() == 130, job.stderr
    job.wait_until_nothing_is_left()
    assert "Traceback" not in job.stderr
    assert job.run_json()["status"] == "interrupted"
    assert Checkpoints(os.path.join(job.directory, "checkpoints")).latest().step > 0


@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.full)])
def test_mpi_does_not_wait_for_ever_for_a_rank_that_is_stopped(start, framework):
    limits = {"limit.collective_seconds": 5, "checkpoint.grace_seconds": 5}
    job = start(framework, "mpirun", bare=True, **limits)
    job.wait_for_checkpoint()
    os.kill(job.rank(1), signal.SIGSTOP)
    assert job.end() == 5, job.stderr
    job.wait_until_nothing_is_left()
    log = job.log_of_rank_0()
    assert "a collective does not return" in log
    assert "at most 5 s" in log
    saved = re.findall(r"saving step (\d+), the last one completed", log)
    assert job.steps_saved()[0] == int(saved[-1])


# ------------------------------------------------------------------------- the bare launchers
@pytest.mark.parametrize(("framework", "kind"), table(("torch", "mpirun")))
def test_under_a_bare_launcher_rank_0_saves_its_last_step_when_all_are_terminated(
    start, framework, kind
):
    settings = {"checkpoint.every_steps": None, "checkpoint.every_epoch": False,
                "checkpoint.every_minutes": 0.02}  # fmt: skip
    job = start(framework, kind, bare=True, **settings)
    job.wait_for_checkpoint()
    before = job.steps_saved()[0]
    job.process.send_signal(signal.SIGTERM)
    assert job.end() != 0
    job.wait_until_nothing_is_left()
    log = job.log_of_rank_0()
    shown = [int(line.split("/")[0].split()[1]) for line in log.splitlines()
             if line.startswith("step ")]  # fmt: skip
    newest = Checkpoints(os.path.join(job.directory, "checkpoints")).latest()
    if last_words := re.search(r"got: +the newest checkpoint is step-(\d+)", log):
        (began,) = re.findall(r"saving step (\d+), the last one completed", log)
        assert int(began) >= shown[-1]  # no completed step that was shown is left out
        assert newest.step == int(began)
        assert last_words[1] == began
    else:
        # mpirun kills a second after its SIGTERM: on a busy machine in the middle of the save,
        # before the last words, or while the save before it is still being written. What was
        # whole before is still the one to go on from.
        assert kind == "mpirun"
        assert before <= newest.step


@pytest.mark.parametrize(("framework", "kind"), table(("torch", "mpirun")))
def test_under_a_bare_launcher_rank_0_saves_its_last_step_when_another_is_killed(
    start, framework, kind
):
    job = start(framework, kind, bare=True, **{"checkpoint.every_steps": 40})
    job.wait_for_checkpoint()
    os.kill(job.rank(1), signal.SIGKILL)
    assert job.end() != 0
    job.wait_until_nothing_is_left()
    log = job.log_of_rank_0()
    shown = [int(line.split("/")[0].split()[1]) for line in log.splitlines()
             if line.startswith("step ")]  # fmt: skip
    latest = Checkpoints(os.path.join(job.directory, "checkpoints")).latest()
    assert latest.step >= shown[-1]


# -------------------------------------------------------------------------------- what is wrong
@pytest.mark.parametrize(("framework", "kind"), jobs(("torch", "horovod")))
def test_not_a_number_on_one_rank_stops_all_and_is_never_saved(
    start, framework, kind, tmp_path, tiny_model_dir
):
    # A word of the vocabulary overflows in the first norm: only the rank that meets it sees it.
    base = tmp_path / "base"
    base.mkdir()
    for name in os.listdir(tiny_model_dir):
        with open(os.path.join(tiny_model_dir, name), "rb") as file:
            (base / name).write_bytes(file.read())
    weights = load_file(str(base / "model.safetensors"))
    (words,) = (name for name in weights if name.endswith("word_embeddings.weight"))
    weights[words][731] = 3e38
    save_file(weights, str(base / "model.safetensors"), metadata={"format": "pt"})
    job = start(
        framework, kind,
        **{"model.base": str(base), "checkpoint.every_steps": 1, "checkpoint.keep": 1000},
    )  # fmt: skip
    assert job.end() == 6, job.stderr
    job.wait_until_nothing_is_left()
    last = job.stderr.split("howdah: ")[-1]
    assert "is not finite" in last
    assert "Traceback" not in job.stderr
    logged = [line for line in read_metrics(job.directory) if "split" not in line]
    assert all(line["loss"] is not None for line in logged)
    for saved in Checkpoints(os.path.join(job.directory, "checkpoints")).list():
        path = os.path.join(saved.path, "model.safetensors")
        for name, array in load_file(path).items():
            assert np.isfinite(array).all(), name


@pytest.mark.parametrize(
    "kind",
    [
        "mpirun",
        *(pytest.param(kind, marks=pytest.mark.full) for kind in ("horovodrun", "torchrun")),
    ],
)
def test_a_refused_configuration_is_printed_once_under_a_bare_launcher(tmp_path, kind):
    config = tmp_path / "run.yaml"
    config.write_text("training: {max_stepz: 3}\n")
    argv = [*launcher(kind, 2), sys.executable, "-m", "howdah.training", "--config", str(config)]
    job = Job(str(tmp_path), argv, {})
    code = job.end()
    assert code == 2 if kind == "mpirun" else code != 0  # the others have codes of their own
    assert job.stderr.count("unknown key 'max_stepz'") == 1
    assert "did you mean training.max_steps?" in job.stderr
    # The others add their own traceback, of the launcher's process.
    assert ("Traceback" if kind == "mpirun" else "training/__main__.py") not in job.stderr


def test_a_dataset_that_is_not_there_is_one_message(start, tmp_path):
    job = start("torch", "auto", **{"data.dataset": str(tmp_path / "nowhere")})
    assert job.end() in (3, 5), job.stderr
    assert job.stderr.count("howdah: ") == 1
    assert "nowhere" in job.stderr.split("howdah: ")[-1]
    assert "Traceback" not in job.stderr
    job.wait_until_nothing_is_left()
