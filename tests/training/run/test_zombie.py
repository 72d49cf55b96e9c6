"""A rank 0 that was stopped, and wakes up after its successor has finished, changes nothing.

The process is a real training, stopped by SIGSTOP: to all others it is gone, as one is whose
machine sleeps. The two attempts run as on two machines: each has a TMPDIR of its own, and the lock
of a shared directory is taken away, as where a mount has no locks.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.errors import CheckpointError
from howdah.models.export.export import export
from howdah.models.export.run_info import RunInfo
from howdah.models.runs.identity import Identity
from howdah.models.runs.metrics_log import MetricsLog
from howdah.models.runs.run_json import RunFile
from howdah.models.weights.pretrained import load_base
from howdah.process.env import RankEnv
from howdah.serving.report import report
from howdah.training.checkpoint.fence import Fence, FencedOff
from howdah.training.checkpoint.manager import Checkpoints
from howdah.training.checkpoint.state import TrainState
from howdah.training.comm.base import SoloComm
from howdah.training.evaluation.evaluate import evaluate
from howdah.training.launch import outcome
from howdah.training.run.event_file import EventFile
from howdah.training.run.run import Run
from howdah.training.run.tracking import MlflowTracker, Provenance
from tests.models.export.test_export import LABELS, weights_for
from tests.runs.training_runs import ROOT, SETTINGS, _nested
from tests.support.waiting import wait_until
from tests.training.run.test_possession import STEP, everything

SECONDS = 240
"""Detects a hang."""
IDENTITY = Identity(base_model="b", dataset="d", tokenizer="t", labels=("x",), plan="p")


class Attempt:
    """A training process as on a machine of its own."""

    def __init__(self, place, **settings):
        place.mkdir()
        config = place / "given.yaml"
        config.write_text(json.dumps(_nested(SETTINGS | settings)))
        env = {"TMPDIR": str(place), "PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": ""}
        self._output = open(place / "output", "w")  # noqa: SIM115 - the process has it
        self.process = subprocess.Popen(
            [sys.executable, "-m", "howdah.training", "--config", str(config)],
            cwd=ROOT, env=os.environ | env, stdout=self._output, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.output = place / "output"

    def ended(self) -> int:
        return self.process.wait(SECONDS)

    def close(self) -> None:
        self.process.kill()  # also of a stopped one
        self.process.wait()
        self._output.close()


@pytest.fixture
def attempt(tmp_path, tiny_dataset, tiny_model_dir):
    made = []

    def start(name, directory, **settings):
        keys = {"run.directory": directory, "data.dataset": tiny_dataset.path,
               "model.base": tiny_model_dir, "training.framework": "torch",
               "tracking.tensorboard": True, "run.storage_retry_seconds": 10.0}  # fmt: skip
        made.append(Attempt(tmp_path / name, **keys, **settings))
        return made[-1]

    yield start
    for one in made:
        one.close()


def hashes(directory: str) -> dict[str, str]:
    return {k: hashlib.sha256(v).hexdigest() for k, v in everything(directory).items()}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("place", ["a shared mount", pytest.param("s3", marks=pytest.mark.full)])
def test_a_zombie_leaves_the_finished_run_as_it_is(place, attempt, tmp_path, request):
    remote = place == "s3"
    directory = f"{request.getfixturevalue('s3_bucket')}/run" if remote else str(tmp_path / "run")
    first = attempt("one", directory, **{"training.max_steps": 100_000})
    checkpoints = storage.join(directory, "checkpoints", "step-4", "manifest.json")
    wait_until(lambda: storage.exists(checkpoints) or first.process.poll(), SECONDS)
    first.process.send_signal(signal.SIGSTOP)
    if not remote:
        os.unlink(os.path.join(directory, ".lock"))
    settings = {"training.max_steps": 6, "checkpoint.resume": "never"}
    second = attempt("two", directory, **settings)
    assert second.ended() == 0, second.output.read_text()
    run = storage.read_json(storage.join(directory, "run.json"))
    assert run["status"] == "finished" and [one["attempt"] for one in run["attempts"]] == [1, 2]
    before = hashes(directory)
    first.process.send_signal(signal.SIGCONT)
    assert first.ended() == CheckpointError.exit_code, first.output.read_text()
    assert "a later attempt has taken over" in first.output.read_text()
    log_of_rank_0 = re.compile(r"/logs/rank\.0$")
    after = hashes(directory)
    if not remote:  # what its libraries print goes to the end of its log in any case
        before, after = ({k: v for k, v in all_.items() if not log_of_rank_0.search(k)}
                         for all_ in (before, after))  # fmt: skip
    # A save that was stopped half-way is removed, under its own name.
    begun = re.compile(r"/checkpoints/step-\d+\.1/|/\.howdah-")
    assert {k: v for k, v in before.items() if not begun.search(k)} == after


# ------------------------------------------------------------ each writer, stopped at its worst
@pytest.fixture
def taken(tmp_path):
    """A run directory, and the fence of an attempt that a later one has followed."""
    directory = str(tmp_path / "run")
    fence = Fence.take(directory)
    fence.check()
    return directory, fence, lambda: Fence.take(directory)


def test_retention_asks_before_it_removes(taken):
    """Stopped between its checkpoint's name and the removal of older ones."""
    directory, fence, follow = taken
    kept = Checkpoints(
        f"{directory}/checkpoints", keep=2, fence=fence, saved=lambda step, path: later(step)
    )

    def later(step):
        if step == 4:
            follow()

    tensors = {"model/a": np.zeros(3, np.float32)}
    for step in (1, 2, 3):
        kept.save(step, tensors, {}, identity=IDENTITY, wait=True)
    assert [one.step for one in kept.list()] == [3, 2]
    with pytest.raises(FencedOff):
        kept.save(4, tensors, {}, identity=IDENTITY, wait=True)
    assert [one.step for one in kept.list()] == [4, 3, 2]
    with pytest.raises(FencedOff):  # and nothing of the next one is begun
        kept.save(5, tensors, {}, identity=IDENTITY, wait=True)
    assert not storage.exists(kept.path_of(5) + ".1")


def test_an_export_report_or_prediction_of_a_zombie_takes_no_name(taken, tiny_model_dir):
    directory, fence, follow = taken
    storage.write_whole(f"{directory}/run.json", b"{}")
    follow()
    base = load_base(tiny_model_dir)
    info = RunInfo(
        run_id="r",
        max_length=48,
        clean={},
        base={"source": "b", "hash": "h"},
        tokenizer_hash="t",
    )
    with pytest.raises(FencedOff):
        export(
            f"{directory}/export", weights=weights_for(base), base_config=base.config,
            tokenizer_files=base.tokenizer_files, label_names=LABELS, run_info=info,
            check=fence.check,
        )  # fmt: skip
    with pytest.raises(FencedOff):
        report.write(directory, check=fence.check)
    with pytest.raises(FencedOff):
        evaluate(lambda *_: None, [], SoloComm(), ["a", "b"], f"{directory}/predictions/test",
                 check=fence.check)  # fmt: skip
    assert {entry.name for entry in storage.list_dir(directory)} == {"attempts", "run.json"}


def test_metrics_and_events_of_a_zombie_are_not_written(taken):
    directory, fence, follow = taken
    log = MetricsLog(f"{directory}/metrics.jsonl", f"{directory}/metrics.jsonl", 1, fence.check)
    events = EventFile(f"{directory}/tensorboard")
    log.write(step=1, loss=1.0)
    events.scalars(1, {"loss": 1.0})
    before = hashes(directory)
    follow()
    with pytest.raises(FencedOff):
        log.write(step=2, loss=0.5)
    with pytest.raises(FencedOff):
        log.set_aside()
    events.abandon()
    after = hashes(directory)
    del after[f"{directory}/attempts/2.json"]
    assert after == before


def test_mlflows_run_stays_finished(taken, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    _, fence, follow = taken
    monkeypatch.chdir(tmp_path)  # where a database has its artifacts
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    config = from_dict({"tracking": {"mlflow": {"uri": uri}}})

    def tracker(run_id, check):
        return MlflowTracker(
            config.tracking.mlflow, config, run_id=run_id, run_name="r", say=print, check=check,
            provenance=Provenance(tags={}, dataset=None, report=lambda: "the report"),
        )  # fmt: skip

    zombie = tracker(None, fence.check)
    later = follow()
    zombie.log(1, {"loss": 3.0})
    second = tracker(zombie.run_id, later.check)
    client = mlflow.MlflowClient(tracking_uri=uri)
    second.log(1, {"loss": 0.5})
    second.close("finished")
    zombie.log(2, {"loss": 2.0})
    zombie.close("failed")
    assert client.get_run(zombie.run_id).info.status == "FINISHED"
    assert [m.value for m in client.get_metric_history(zombie.run_id, "loss")] == [0.5]


def test_a_command_that_wakes_up_leaves_the_run_to_its_successor(tmp_path):
    """Its rank's attempt is the first one; the newest in run.json is of another process."""
    directory = str(tmp_path / "run")

    rank = SimpleNamespace(pid=os.getpid())
    config = from_dict({"run": {"directory": directory}})
    RunFile(directory).begin(config, world_size=1, attempt=1)
    assert outcome.taken_over(rank, directory, []) is None
    later = RunFile(directory)
    later.begin(config, world_size=1, attempt=2)
    later.values["attempts"][-1]["pid"] += 1
    later.update(status="finished")
    error = outcome.taken_over(rank, directory, [])
    assert isinstance(error, FencedOff) and "attempt 2" in error.got
    # Attempts from before this command began have not taken it over.
    assert outcome.taken_over(rank, directory, later.values["attempts"]) is None


def test_the_log_of_another_rank_is_not_published_over_its_successors(tmp_path, monkeypatch):
    """Under a launcher the logs of two attempts have the same names."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    directory = f"memory://{tmp_path.name}/run"
    published = f"{directory}/logs/rank.1"
    Fence.take(directory)
    config = from_dict({"run": {"directory": directory}})
    run = Run(config, RankEnv(rank=1, size=2), console=io.StringIO())
    run.open()
    run.share(SimpleNamespace(broadcast_json=lambda shared: {"run_id": "r", "attempt": 1}))
    log = os.path.join(run.local, "logs", "rank.1")
    os.makedirs(os.path.dirname(log), exist_ok=True)
    with open(log, "w") as file:
        file.write("one line\n")
        file.flush()
        run._mirror.publish()
        assert storage.read_bytes(published) == b"one line\n"
        Fence.take(directory)
        storage.write_whole(published, b"the successor's")
        file.write("another\n")
    run._mirror.publish()
    assert everything(f"{directory}/logs") == {published: b"the successor's"}
    with pytest.raises(FencedOff):  # and its training ends, rather than go on for nothing
        run.step_done(TrainState(step=1), **STEP, loss=1.0)
    run.close("failed")
    assert everything(f"{directory}/logs") == {published: b"the successor's"}
    storage.remove(directory, recursive=True)
