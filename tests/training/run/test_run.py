"""A run's directory, figures, environment and stop requests."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import types
from dataclasses import replace

import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.config.model import CheckpointSection
from howdah.core.processes import process_start
from howdah.errors import (
    CheckpointError,
    StorageError,
    StorageFull,
    UsageError,
)
from howdah.models.runs.identity import Identity
from howdah.models.runs.metrics_log import MetricsLog, read_metrics
from howdah.models.runs.run_json import RunFile, config_hash
from howdah.process.env import RankEnv
from howdah.training.checkpoint.schedule import CheckpointSchedule
from howdah.training.checkpoint.state import TrainState, score_of
from howdah.training.run.event_file import EventFile
from howdah.training.run.local_dir import RankRecord, RunLock, local_directory
from howdah.training.run.progress import Progress, StepMetrics
from howdah.training.run.run import Run
from tests import ROOT as REPOSITORY

ROOT = str(REPOSITORY)
IDENTITY = Identity(base_model="b", dataset="d", tokenizer="t", labels=("x",), plan="p")
STEP = {"lr": 1e-4, "grad_norm": 1.0, "rows": 8, "real_tokens": 100, "padded_tokens": 102}


@pytest.fixture(params=["file", "memory"])
def directory(request, tmp_path, monkeypatch):
    if request.param == "file":
        yield str(tmp_path / "run")
        return
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # of the local copies
    path = f"memory://{tmp_path.name}/run"
    yield path
    storage.remove(path, recursive=True)


def open_run(directory: str, console=None, **sections) -> Run:
    config = from_dict({"run": {"directory": directory}, **sections})
    run = Run(config, RankEnv(), console=console or io.StringIO())
    run.open()
    return run


def take_steps(run: Run, state: TrainState, upto: int, total: int = 20) -> None:
    run.begin(state, total_steps=total)
    while state.step < upto:
        state.step += 1
        state.epochs = state.step / 10
        run.step_done(state, loss=1.0 / state.step, **STEP)
    run.end_steps()


def test_a_run_directory_holds_what_scripts_rely_on(directory):
    console = io.StringIO()
    run = open_run(directory, console, training={"logging_steps": 5})
    state = TrainState()
    take_steps(run, state, 20)
    metrics = {"loss": 0.5, "accuracy": 0.9, "roc_auc": float("nan")}
    run.metrics.evaluated(state, "validation", metrics)
    run.finish(state, {"validation": metrics})
    run.close("finished")

    record = storage.read_json(storage.join(directory, "run.json"))
    assert record["status"] == "finished"
    assert record["framework"] == "tensorflow"
    assert record["world_size"] == 1
    assert record["steps"] == 20
    assert record["epochs"] == 2.0
    assert record["metrics"]["validation"]["accuracy"] == 0.9
    assert record["metrics"]["validation"]["roc_auc"] is None  # JSON knows no NaN
    assert record["train_seconds"] > 0
    assert state.rows == 160
    assert record["examples_per_second"] == pytest.approx(160 / state.train_seconds, rel=1e-3)
    assert record["attempts"][0]["seconds_to_first_step"] > 0
    assert record["versions"]["numpy"]

    lines = read_metrics(directory)
    assert [line["step"] for line in lines] == [5, 10, 15, 20, 20]
    keys = {"step", "epoch", "loss", "lr", "examples_per_second", "tokens_per_second",
              "padding_ratio", "input_wait", "attempt"}  # fmt: skip
    assert keys <= set(lines[0])
    assert lines[0]["padding_ratio"] == pytest.approx(1.02)
    assert lines[-1]["metrics"]["roc_auc"] is None

    shown = console.getvalue().splitlines()
    assert re.match(
        r"step 5/20 loss 0\.2000 lr 1\.00e-04 [\d,]+ ex/s [\d,]+ tok/s pad 1\.02 eta \d+s", shown[0]
    )
    names = {entry.name for entry in storage.list_dir(directory)}
    assert {"config.yaml", "run.json", "metrics.jsonl", "attempts", "tensorboard"} <= names


def test_the_frozen_configuration_is_the_run_s_own(tmp_path):
    from howdah.config.loader import load

    run = open_run(str(tmp_path / "run"), training={"seed": 7})
    run.close("finished")
    assert load(str(tmp_path / "run" / "config.yaml")) == run.config


def test_a_later_attempt_keeps_the_id_and_takes_the_place_of_lines_beyond_its_start(directory):
    settings = {"training": {"logging_steps": 2}}
    first = open_run(directory, **settings)
    take_steps(first, TrainState(), 8)
    first.close("failed")
    second = open_run(directory, **settings)
    take_steps(second, TrainState(step=5), 10)
    second.close("finished")
    assert (first.attempt, second.attempt) == (1, 2)
    assert first.run_id == second.run_id
    positions = [(line["step"], line["attempt"]) for line in read_metrics(directory)]
    assert positions == [(2, 1), (4, 1), (6, 2), (8, 2), (10, 2)]
    assert len(storage.read_json(storage.join(directory, "run.json"))["attempts"]) == 2


def test_a_line_that_a_killed_attempt_left_unfinished_spoils_nothing(tmp_path):
    path = str(tmp_path / "metrics.jsonl")
    log = MetricsLog(path, path, 1)
    log.write(step=1, loss=0.5)
    log.close()
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"attempt": 1, "step": 2, "lo')
    assert [line["step"] for line in read_metrics(str(tmp_path))] == [1]
    again = MetricsLog(path, path, 2)
    again.write(step=2, loss=float("inf"))
    again.close()
    assert [(line["step"], line["loss"]) for line in read_metrics(str(tmp_path))] == [
        (1, 0.5), (2, None),
    ]  # fmt: skip


def test_the_hash_is_of_what_is_learnt_not_of_where_it_lies():
    one = from_dict({"run": {"directory": "a"}, "training": {"seed": 1}})
    elsewhere = from_dict({"run": {"directory": "b"}, "training": {"seed": 1}})
    other = from_dict({"run": {"directory": "a"}, "training": {"seed": 2}})
    assert config_hash(one) == config_hash(elsewhere) != config_hash(other)
    torch = {"seed": 1, "framework": "torch"}
    whole = from_dict({"training": torch})
    divided = from_dict({"training": torch | {"parallel": {"shard": "optimizer"}}})
    assert config_hash(whole) == config_hash(divided) != config_hash(one)


def test_a_broken_run_json_is_begun_anew(tmp_path):
    storage.write_whole(str(tmp_path / "run.json"), b"{ not json")
    run = open_run(str(tmp_path))
    run.close("finished")
    assert RunFile(str(tmp_path)).values["status"] == "finished"


# ------------------------------------------------------------------------------------ resume
def saved(run: Run, *steps: int) -> None:
    import numpy as np

    for step in steps:
        state = TrainState(step=step, plan={"step": 0})
        tensors = {"model/x": np.full(3, step, np.float32)}
        run.checkpoints.save(step, tensors, run.meta(state), identity=IDENTITY, wait=True)


@pytest.mark.parametrize(
    ("resume", "step", "left"),
    [
        ("auto", 20, ["step-10", "step-20"]),
        ("never", None, ["superseded-step-10.2", "superseded-step-20.2"]),
        ("PATH", 10, ["step-10", "superseded-step-20.2"]),
    ],
)
def test_where_a_run_goes_on_from(directory, resume, step, left):
    run = open_run(directory)
    saved(run, 10, 20)
    run.close("interrupted")
    if resume == "PATH":
        resume = run.checkpoints.path_of(10)
    again = open_run(directory, checkpoint={"resume": resume})
    checkpoint = again.owned.resume_checkpoint(IDENTITY)
    again.close("finished")
    assert (None if checkpoint is None else checkpoint.step) == step
    names = [entry.name for entry in storage.list_dir(storage.join(directory, "checkpoints"))]
    assert names == left
    attempt = storage.read_json(storage.join(directory, "run.json"))["attempts"][-1]
    assert attempt["resumed_at_step"] == (step or 0)


def test_a_checkpoint_that_is_not_there_is_refused(tmp_path):
    run = open_run(str(tmp_path), checkpoint={"resume": str(tmp_path / "nowhere")})
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        run.owned.resume_checkpoint(IDENTITY)
    run.close("failed")


def test_when_a_checkpoint_is_due(monkeypatch):
    now = types.SimpleNamespace(seconds=1000.0)
    monkeypatch.setattr("howdah.training.checkpoint.schedule.time.monotonic", lambda: now.seconds)
    times = CheckpointSchedule(CheckpointSection(every_steps=40, every_minutes=10))
    times.begin(0)
    assert [step for step in range(1, 81) if times.due(step, busy=True)] == [40, 80]
    now.seconds += 601
    assert times.due(5, busy=False)
    assert not times.due(5, busy=True)
    times.begun(5)
    times.whole(5)
    assert not times.due(6, busy=False)
    times.failed()  # another within a minute
    now.seconds += 59
    assert not times.due(7, busy=False)
    now.seconds += 2
    assert times.due(7, busy=False)
    times.begun(7)
    assert not times.due(8, busy=False)


# ---------------------------------------------------------------------- one run in a directory
def test_two_runs_in_one_directory_the_second_is_refused_and_harms_nothing(tmp_path):
    run = open_run(str(tmp_path))
    before = storage.read_bytes(str(tmp_path / "run.json"))
    with pytest.raises(UsageError, match="using this run directory") as caught:
        open_run(str(tmp_path))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert f"pid {os.getpid()}" in caught.value.got
    assert storage.read_bytes(str(tmp_path / "run.json")) == before
    run.close("finished")
    open_run(str(tmp_path)).close("finished")  # free again


def test_a_killed_holder_leaves_no_lock_behind(tmp_path):
    script = textwrap.dedent(f"""
        import sys, time
        sys.path.insert(0, {ROOT!r})
        from howdah.training.run.local_dir import RunLock
        lock = RunLock({str(tmp_path)!r}, ".lock", "run")
        lock.take()
        print("taken", flush=True)
        time.sleep(600)
    """)
    holder = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        assert holder.stdout.readline() == b"taken\n"
        lock = RunLock(str(tmp_path), ".lock", "run")
        with pytest.raises(UsageError):
            lock.take()
    finally:
        holder.kill()
        holder.wait()
    lock.take()
    lock.release()


def test_a_rank_is_known_by_pid_and_start(tmp_path):
    record = RankRecord.of_this_process(3)
    record.write(str(tmp_path))
    (read,) = RankRecord.read_all(str(tmp_path))
    assert read == record
    assert read.alive
    assert read.is_local
    assert not RankRecord(3, record.pid, record.start + 1, record.host).alive  # a pid used again
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process_start(child.pid) is None  # a zombie has ended
    child.wait()
    RankRecord.clear(str(tmp_path))
    assert RankRecord.read_all(str(tmp_path)) == []


def test_the_private_directory_of_remote_runs_must_be_ours(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    place = local_directory("memory://x/run")
    assert os.stat(place).st_mode & 0o077 == 0
    assert place != local_directory("memory://y/run")
    base = os.path.dirname(place)
    os.rename(base, base + ".moved")
    os.symlink(base + ".moved", base)
    # Another user's directory cannot be distinguished from a link here: another name is taken.
    other = local_directory("memory://x/run")
    assert os.path.dirname(other) == f"{base}-1"
    os.unlink(base)
    assert local_directory("memory://x/run") == other  # the stranger has gone: still the same
    os.rename(f"{base}-1", f"{base}-1.moved")
    for path in [base, *(f"{base}-{number}" for number in range(1, 20))]:
        os.symlink(base + ".moved", path)
    with pytest.raises(StorageError, match="other users own") as caught:
        local_directory("memory://x/run")
    assert "TMPDIR" in caught.value.remedy


DAY = 86400.0


def _grow_old(directory, days):
    at = time.time() - days * DAY
    for folder, folders, files in os.walk(directory, topdown=False):
        for name in (*folders, *files):
            os.utime(os.path.join(folder, name), (at, at))
    os.utime(directory, (at, at))


def test_unused_copies_of_remote_runs_are_removed_after_a_month(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    places = {}
    for name in ("old", "new", "grows", "locked", "alive"):
        places[name] = local_directory(f"memory://x/{name}")
        storage.write_whole(os.path.join(places[name], "logs", "rank.0"), b"step 1")
        RankRecord(0, 1, 1, "elsewhere").write(places[name])
        RunLock(places[name], ".lock", name).take()
    RankRecord.of_this_process(0).write(places["alive"])
    lock = RunLock(places["locked"], ".lock", "run")
    lock.take()
    for name, place in places.items():
        _grow_old(place, 29 if name == "new" else 31)
    os.utime(os.path.join(places["grows"], "logs", "rank.0"))
    begun = local_directory("memory://x/another")  # which sweeps
    left = {name for name, place in places.items() if os.path.exists(place)}
    assert left == {"new", "grows", "locked", "alive"} and os.path.isdir(begun)
    lock.release()
    local_directory("memory://x/locked")  # used again: it stays
    local_directory("memory://x/one-more")
    assert os.path.exists(places["locked"])


# ----------------------------------------------------------------------------------- figures
FIGURES = StepMetrics(
    step=120, epoch=1.2, loss=0.512, lr=4.1e-5, grad_norm=1.0, examples_per_second=123.4,
    tokens_per_second=8812.2, padding_ratio=1.021,
)  # fmt: skip


def test_the_progress_line():
    expected = "step 120/900 loss 0.5120 lr 4.10e-05 123 ex/s 8,812 tok/s pad 1.02 eta 3m12s"
    assert FIGURES.line(900, 192.0) == expected
    hungry = replace(FIGURES, input_wait=0.123).line(900, 192.0)
    assert hungry == expected.replace(" eta", " waits for input 12% eta")
    skipping = replace(FIGURES, skipped_steps=3).line(900, 192.0)
    assert skipping == expected.replace(" eta", " skipped 3 eta")


def test_the_wait_for_input_is_that_of_the_steps_since_the_last_line(tmp_path):
    run = open_run(str(tmp_path / "run"), io.StringIO(), training={"logging_steps": 1})
    state = TrainState()
    run.begin(state, total_steps=3)
    # Far longer than the steps themselves, then nothing: the first line has all of it.
    for waited in (1000.0, 1000.0, 2000.0):
        state.step += 1
        run.step_done(state, loss=1.0, **STEP, input_seconds=waited)
    run.close("finished")
    waits = [line["input_wait"] for line in read_metrics(str(tmp_path / "run"))]
    assert waits == [1.0, 0.0, 1.0]


def test_a_terminal_gets_a_bar_with_the_same_figures(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    terminal = Terminal()
    progress = Progress(terminal)
    progress.begin(0, 900)
    progress.step(120)
    progress.show(FIGURES, 900, 192.0)
    progress.say("validation at step 120: loss 0.4000")
    progress.end()
    shown = terminal.getvalue()
    assert "120/900" in shown
    assert "loss 0.5120" in shown
    assert "validation at step 120" in shown
    assert "━" in shown


def test_paused_time_is_no_training_time(tmp_path):
    run = open_run(str(tmp_path))
    state = TrainState()
    run.begin(state, total_steps=2)
    with run.metrics.paused():
        time.sleep(0.3)
    state.step = 1
    run.step_done(state, loss=1.0, **STEP)
    run.end_steps()
    run.close("finished")
    assert state.train_seconds < 0.3


def test_event_files_are_what_tensorboard_reads(tmp_path):
    first = EventFile(str(tmp_path))
    for step in (1, 2, 300):
        first.scalars(step, {"train/loss": 1.0 / step, "train/lr": 2e-5})
    first.close()
    script = textwrap.dedent(f"""
        import json
        from tensorboard.backend.event_processing import event_file_loader
        from tensorboard.util import tensor_util
        import glob
        (path,) = glob.glob({str(tmp_path)!r} + "/*")
        out = []
        for event in event_file_loader.EventFileLoader(path).Load():
            for value in event.summary.value:
                out.append([event.step, value.tag, float(tensor_util.make_ndarray(value.tensor))])
        print(json.dumps(out))
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    points = json.loads(done.stdout.splitlines()[-1])
    assert points[0] == [1, "train/loss", 1.0]
    assert [step for step, tag, _ in points if tag == "train/lr"] == [1, 2, 300]
    assert points[-2][2] == pytest.approx(1 / 300)


def test_nothing_of_a_run_imports_a_framework(tmp_path):
    script = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {ROOT!r})
        from tests.training.run.test_run import open_run, take_steps, TrainState
        run = open_run({str(tmp_path / "run")!r})
        take_steps(run, TrainState(), 10)
        run.close("finished")
        loaded = {{"tensorflow", "torch", "tf_keras", "transformers"}} & set(sys.modules)
        sys.exit(f"loaded: {{loaded}}" if loaded else 0)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ------------------------------------------------------------------------------------- state
def test_the_best_score_and_early_stopping():
    from howdah.config.training import EarlyStopping

    state, rules = TrainState(), EarlyStopping(patience=2)
    judged = []
    for step, score in enumerate((0.5, 0.6, 0.6, None, 0.7), start=1):
        state.step = step
        judged.append(state.judge(score, rules))
    assert [j.is_best for j in judged] == [True, True, False, False, True]
    assert [j.stop for j in judged] == [False, False, False, True, False]
    assert (state.best_step, state.stopped_early) == (5, True)
    assert TrainState.from_meta(json.loads(json.dumps(state.to_meta()))) == state


def test_a_loss_is_better_when_it_is_smaller():
    assert score_of({"loss": 0.2}, "loss") > score_of({"loss": 0.3}, "loss")
    assert score_of({"roc_auc": None}, "roc_auc") is None
    assert score_of({"accuracy": float("nan")}, "accuracy") is None


def test_a_checkpoint_without_the_state_s_keys_is_refused():
    with pytest.raises(CheckpointError, match="lacks") as caught:
        TrainState.from_meta({"step": 3})
    assert "plan" in caught.value.what


def test_a_lock_that_cannot_be_written_is_a_typed_error(tmp_path):
    os.makedirs(tmp_path / ".lock")
    with pytest.raises(StorageError, match="it is a directory") as caught:
        RunLock(str(tmp_path), ".lock", "run").take()
    assert caught.value.where == str(tmp_path / ".lock") and caught.value.remedy


def test_a_lock_on_a_full_disk_is_a_typed_error_and_is_not_held(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False).returncode:
        pytest.skip("no small file system can be mounted here: that takes root")
    try:
        with contextlib.suppress(OSError), open(tmp_path / "full", "wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        lock = RunLock(str(tmp_path), ".lock", "run")
        for _ in range(2):  # StorageFull again, not "another training run is using it"
            with pytest.raises(StorageFull, match="no space left"):
                lock.take()
        os.unlink(tmp_path / "full")
        lock.take()
        lock.release()
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)
