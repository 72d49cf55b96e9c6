"""Checkpoints: whole or absent, verified, pruned by rule, refused where they are another run's."""

import errno
import io
import json
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from safetensors.numpy import load as safetensors_load
from safetensors.numpy import save_file

from howdah import storage
from howdah.errors import CheckpointError, StorageError, StorageFull
from howdah.models.runs.identity import Identity
from howdah.models.weights.tensors import FormatError, read_header, read_tensors
from howdah.training.checkpoint import throttle
from howdah.training.checkpoint import write as checkpoint_write
from howdah.training.checkpoint.fence import Fence
from howdah.training.checkpoint.manager import Checkpoints
from howdah.training.checkpoint.read import load
from howdah.training.checkpoint.state import TrainState
from tests import ROOT

IDENTITY = Identity(
    base_model="base-1",
    dataset="data-1",
    tokenizer="tok-1",
    labels=("neg", "pos"),
    plan="plan-1",
    plan_inputs=(("seed", "42"), ("global_batch_size", "32")),
)


def changed(**fields) -> Identity:
    return Identity(**(IDENTITY.__dict__ | fields))


@pytest.fixture(params=["file", "memory"])
def run_directory(request, tmp_path):
    if request.param == "file":
        yield str(tmp_path / "run")
        return
    path = f"memory://{tmp_path.name}/run"
    yield path
    storage.remove(path, recursive=True)


def tensors(step: int) -> dict[str, np.ndarray]:
    values = np.random.default_rng(step)
    return {
        "model/distilbert.w": values.normal(size=(3, 5)).astype(np.float32),
        "model/bias": values.normal(size=(5,)).astype(np.float32),
        "adam_m/distilbert.w": values.normal(size=(3, 5)).astype(np.float32),
        "adam_v/distilbert.w": values.normal(size=(3, 5)).astype(np.float32),
        "adam_steps": np.array(step, dtype=np.int64),
        "empty": np.zeros((0, 4), dtype=np.float32),
    }


def meta(step: int, plan_step: int = 0) -> dict:
    plan = {"plan_hash": "plan-1", "epoch": 1, "step": plan_step}
    return TrainState(step=step, plan=plan).to_meta()


def opened(run_directory: str, **kwargs) -> Checkpoints:
    fence = Fence.take(run_directory)
    return Checkpoints(storage.join(run_directory, "checkpoints"), fence=fence, **kwargs)


def save(checkpoints: Checkpoints, step: int, **kwargs) -> None:
    checkpoints.save(
        step, tensors(step), meta(step, kwargs.pop("plan_step", 0)),
        identity=IDENTITY, wait=True, **kwargs,
    )  # fmt: skip


def names(checkpoints: Checkpoints) -> list[str]:
    return [entry.name for entry in storage.list_dir(checkpoints.directory)]


def test_a_saved_checkpoint_is_loaded_unchanged(run_directory):
    checkpoints = opened(run_directory)
    assert checkpoints.latest(IDENTITY) is None
    save(checkpoints, 7)
    latest = checkpoints.latest(IDENTITY)
    assert latest.step == 7
    assert TrainState.from_meta(latest.meta).step == 7
    for name, array in tensors(7).items():
        assert latest.tensors[name].dtype == array.dtype
        np.testing.assert_array_equal(latest.tensors[name], array)
    assert names(checkpoints) == ["step-7"]


def test_the_files_are_safetensors_and_carry_their_hashes(tmp_path):
    checkpoints = opened(str(tmp_path))
    save(checkpoints, 7)
    model = safetensors_load(storage.read_bytes(checkpoints.path_of(7) + "/model.safetensors"))
    assert set(model) == {"model/distilbert.w", "model/bias"}
    np.testing.assert_array_equal(model["model/bias"], tensors(7)["model/bias"])
    manifest = storage.read_json(checkpoints.path_of(7) + "/manifest.json")
    for name, entry in manifest["files"].items():
        assert entry["bytes"] == storage.size(checkpoints.path_of(7) + "/" + name)


def test_float16_is_no_checkpoint_type_and_leaves_nothing_whole(tmp_path):
    checkpoints = opened(str(tmp_path))
    with pytest.raises(ValueError, match="float16"):
        checkpoints.save(
            1, {"model/x": np.zeros(3, np.float16)}, meta(1), identity=IDENTITY, wait=True
        )
    assert checkpoints.list() == []


def test_the_newest_checkpoint_is_found_by_number_not_by_text(run_directory):
    checkpoints = opened(run_directory, keep=5)
    for step in (9, 10, 100):
        save(checkpoints, step)
    assert [saved.step for saved in checkpoints.list()] == [100, 10, 9]
    assert checkpoints.latest(IDENTITY).step == 100


def test_retention_keeps_the_newest_and_the_best(run_directory):
    checkpoints = opened(run_directory, keep=2)
    for step, score in ((1, 0.2), (2, 0.9), (3, None), (4, 0.9), (5, 0.1), (6, None)):
        save(checkpoints, step, score=score)
    assert [saved.step for saved in checkpoints.list()] == [6, 5, 2]
    assert checkpoints.best().step == 2  # of equals the earliest
    assert names(checkpoints) == ["step-2", "step-5", "step-6"]


def test_a_step_saved_twice_is_not_written_again(tmp_path):
    checkpoints = opened(str(tmp_path))
    save(checkpoints, 3, score=0.5)
    before = storage.read_bytes(checkpoints.path_of(3) + "/manifest.json")
    save(checkpoints, 3)
    save(checkpoints, 3, score=0.5)
    assert storage.read_bytes(checkpoints.path_of(3) + "/manifest.json") == before
    with pytest.raises(CheckpointError, match="another validation score"):
        save(checkpoints, 3, score=0.6)


def test_a_save_that_is_waited_for_is_not_throttled(tmp_path, monkeypatch):
    monkeypatch.setattr(throttle, "_LEAST_BYTES_PER_SECOND", 1)  # a day for these few tensors
    monkeypatch.setattr(throttle, "_MOST_SECONDS", 1e9)
    checkpoints = opened(str(tmp_path))
    checkpoints.save(1, tensors(1), meta(1), identity=IDENTITY)
    assert checkpoints.busy
    save(checkpoints, 2)  # waits for the save before it, then for this one
    assert [saved.step for saved in checkpoints.list()] == [2, 1]


def test_saving_does_not_block_the_caller_and_one_save_runs_at_a_time(tmp_path, monkeypatch):
    checkpoints = opened(str(tmp_path))
    gate, writing = threading.Event(), threading.Event()
    real, concurrent = checkpoint_write.write_tensors, []

    def slow(file, arrays):
        concurrent.append(threading.current_thread().name)
        writing.set()
        assert gate.wait(60)
        return real(file, arrays)

    monkeypatch.setattr(checkpoint_write, "write_tensors", slow)
    checkpoints.save(1, tensors(1), meta(1), identity=IDENTITY)
    assert writing.wait(60)
    assert checkpoints.busy
    assert checkpoints.list() == []  # absent until it is whole
    second = threading.Thread(
        target=checkpoints.save, args=(2, tensors(2), meta(2)), kwargs={"identity": IDENTITY}
    )
    second.start()
    assert set(concurrent) == {"checkpoint-1"}
    gate.set()
    second.join(60)
    checkpoints.wait()
    assert [saved.step for saved in checkpoints.list()] == [2, 1]
    assert concurrent == ["checkpoint-1"] * 2 + ["checkpoint-2"] * 2


def test_an_error_of_the_thread_is_raised_by_the_next_call(tmp_path, monkeypatch):
    checkpoints = opened(str(tmp_path))
    save(checkpoints, 1)

    def broken(file, arrays):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(checkpoint_write, "write_tensors", broken)
    checkpoints.save(2, tensors(2), meta(2), identity=IDENTITY)
    with pytest.raises(StorageError, match="Input/output error"):
        checkpoints.wait()
    monkeypatch.undo()
    save(checkpoints, 3)  # the error was raised once: the next save works
    assert [saved.step for saved in checkpoints.list()] == [3, 1]


def test_a_full_disk_is_an_error_with_path_needed_and_free_bytes(tmp_path, monkeypatch):
    checkpoints = opened(str(tmp_path))
    save(checkpoints, 1)
    monkeypatch.setattr(storage, "free_bytes", lambda path: 1000)
    with pytest.raises(StorageFull) as caught:
        save(checkpoints, 2)
    error = caught.value
    assert error.where == checkpoints.directory
    assert "MiB free" in error.expected
    assert "free" in error.got
    assert names(checkpoints) == ["step-1"]


def test_a_disk_that_fills_up_while_writing_leaves_nothing_half_written(tmp_path, monkeypatch):
    checkpoints = opened(str(tmp_path))
    save(checkpoints, 1)

    def full(file, arrays):
        file.write(b"some")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint_write, "write_tensors", full)
    with pytest.raises(StorageFull):
        save(checkpoints, 2)
    assert names(checkpoints) == ["step-1"]


# ------------------------------------------------------------------------------- corruption
def flip(path: str) -> None:
    data = bytearray(storage.read_bytes(path))
    data[-3] ^= 1
    storage.write_whole(path, bytes(data))


def cut(path: str) -> None:
    storage.write_whole(path, storage.read_bytes(path)[:-10])


DAMAGE = {
    "a flipped bit": lambda path: flip(path + "/optimizer.safetensors"),
    "a file cut short": lambda path: cut(path + "/model.safetensors"),
    "a missing file": lambda path: storage.remove(path + "/meta.json"),
    "no manifest": lambda path: storage.remove(path + "/manifest.json"),
    "a manifest that is no JSON": lambda path: cut(path + "/manifest.json"),
    "a manifest of something else": lambda path: storage.write_whole(
        path + "/manifest.json", b'{"format": 1, "files": {"model.safetensors": 3}}'
    ),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_corrupt_checkpoint_is_quarantined_and_the_one_before_is_taken(run_directory, damage):
    checkpoints = opened(run_directory)
    save(checkpoints, 10)
    save(checkpoints, 20)
    damage(checkpoints.path_of(20))
    lines: list[str] = []
    again = opened(run_directory, say=lines.append)
    assert again.latest(IDENTITY).step == 10
    assert names(again) == ["quarantine-step-20.2", "step-10"]
    assert len(lines) == 1
    assert "step-20 is corrupt" in lines[0]
    save(again, 20)  # the name is free: the run reaches step 20 again
    assert again.latest(IDENTITY).step == 20


def test_a_reader_renames_nothing(tmp_path):
    checkpoints = opened(str(tmp_path))
    save(checkpoints, 10)
    save(checkpoints, 20)
    flip(checkpoints.path_of(20) + "/model.safetensors")
    lines: list[str] = []
    reader = Checkpoints(checkpoints.directory, say=lines.append)
    assert reader.latest().step == 10
    assert names(reader) == ["step-10", "step-20"]
    assert lines
    with pytest.raises(ValueError, match="read-only"):
        save(reader, 30)


def test_all_corrupt_is_an_error_and_not_a_fresh_start(tmp_path):
    checkpoints = opened(str(tmp_path))
    save(checkpoints, 10)
    save(checkpoints, 20)
    for step in (10, 20):
        flip(checkpoints.path_of(step) + "/model.safetensors")
    for _ in range(2):  # a retry is refused too, and the files wait for their copies
        with pytest.raises(CheckpointError, match="every checkpoint of this run is corrupt"):
            opened(str(tmp_path)).latest(IDENTITY)
    assert names(checkpoints) == ["step-10", "step-20"]
    flip(checkpoints.path_of(10) + "/model.safetensors")  # restored
    assert opened(str(tmp_path)).latest(IDENTITY).step == 10


def test_a_state_in_memory_is_saved_in_place_of_corrupt_ones(tmp_path):
    checkpoints = opened(str(tmp_path))
    for step in (10, 20):
        save(checkpoints, step)
        flip(checkpoints.path_of(step) + "/model.safetensors")
    assert checkpoints.latest(IDENTITY, in_memory=12) is None
    assert names(checkpoints) == ["quarantine-step-20.1", "step-10"]
    with pytest.raises(CheckpointError):  # lost before it was saved: not begun anew
        checkpoints.latest(IDENTITY)
    save(checkpoints, 20)
    assert checkpoints.latest(IDENTITY).step == 20


def test_a_header_with_wrong_sizes_is_refused():
    for data in (b"", b"\xff" * 16, b"\x02" + b"\0" * 7 + b"{}"[:1], b"\x02" + b"\0" * 7 + b"[]"):
        with pytest.raises(FormatError):
            read_tensors(data)
    header = b'{"x":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
    with pytest.raises(FormatError, match="do not hold"):
        read_tensors(len(header).to_bytes(8, "little") + header + b"\0" * 8)


def test_a_header_is_read_without_the_tensors(tmp_path):
    path = tmp_path / "x.safetensors"
    weights = {"a": np.zeros((2, 3), np.float16), "b": np.ones(4, np.float32)}
    save_file(weights, path, metadata={"format": "pt"})
    with path.open("rb") as file:
        tensors, metadata = read_header(file)
        assert file.tell() == path.stat().st_size - sum(array.nbytes for array in weights.values())
    assert metadata == {"format": "pt"}
    assert {name: (one["dtype"], one["shape"]) for name, one in tensors.items()} == {
        "a": ("F16", [2, 3]), "b": ("F32", [4]),
    }  # fmt: skip
    for data in (b"", b"\xff" * 16, b"\x02" + b"\0" * 7 + b"{", b"\x02" + b"\0" * 7 + b"[]"):
        with pytest.raises(FormatError):
            read_header(io.BytesIO(data))


# --------------------------------------------------------------------------------- identity
@pytest.mark.parametrize(
    ("expect", "what", "ours", "theirs"),
    [
        (changed(base_model="base-2"), "base model", "base-2", "base-1"),
        (changed(dataset="data-2"), "dataset", "data-2", "data-1"),
        (changed(tokenizer="tok-2"), "tokenizer", "tok-2", "tok-1"),
        (changed(labels=("pos", "neg")), "set of labels", "pos, neg", "neg, pos"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_with_both_values(
    tmp_path, expect, what, ours, theirs
):
    checkpoints = opened(str(tmp_path))
    save(checkpoints, 10)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.latest(expect)
    assert what in caught.value.what
    assert ours in caught.value.expected
    assert theirs in caught.value.got
    assert "--set checkpoint.resume=never" in caught.value.remedy
    assert names(checkpoints) == ["step-10"]  # not taken for corrupt, not renamed


def test_the_plan_may_change_between_epochs_but_not_inside_one(tmp_path):
    other = changed(plan="plan-2", plan_inputs=(("seed", "42"), ("global_batch_size", "64")))
    checkpoints = opened(str(tmp_path))
    save(checkpoints, 10, plan_step=0)
    assert checkpoints.latest(other).step == 10
    save(checkpoints, 13, plan_step=3)
    with pytest.raises(CheckpointError) as caught:
        checkpoints.latest(other)
    assert caught.value.expected == "global_batch_size=64"
    assert caught.value.got == "global_batch_size=32"


def test_a_newer_format_is_refused(tmp_path):
    checkpoints = opened(str(tmp_path))
    save(checkpoints, 10)
    path = checkpoints.path_of(10) + "/manifest.json"
    manifest = storage.read_json(path) | {"format": 99}
    storage.write_whole(path, json.dumps(manifest).encode())
    with pytest.raises(CheckpointError, match="has format 99"):
        checkpoints.latest(IDENTITY)


def test_a_path_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        load(str(tmp_path / "step-4"))


# ------------------------------------------------------------------------- attempts, zombies
def test_each_attempt_has_its_own_number(run_directory):
    first, second = Fence.take(run_directory), Fence.take(run_directory)
    assert (first.attempt, second.attempt) == (1, 2)
    second.check()
    with pytest.raises(CheckpointError, match="later attempt"):
        first.check()


def test_simultaneous_attempts_get_different_numbers(tmp_path):
    taken: list[int] = []
    threads = [
        threading.Thread(target=lambda: taken.append(Fence.take(str(tmp_path)).attempt))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(taken) == list(range(1, 9))


def test_a_zombie_cannot_commit(run_directory):
    zombie = opened(run_directory)
    save(zombie, 10)
    heir = opened(run_directory)
    with pytest.raises(CheckpointError, match="later attempt"):
        save(zombie, 20)
    assert names(heir) == ["step-10"]
    save(heir, 11)
    assert heir.latest(IDENTITY).step == 11


def test_leftovers_of_earlier_attempts_are_swept_and_those_of_this_one_are_not(tmp_path):
    checkpoints = opened(str(tmp_path))
    save(checkpoints, 10)
    for leftover in ("step-20.1-0badcafe", "step-5.pruned", "step-30.2-0badcafe", "notes"):
        storage.write_whole(f"{checkpoints.directory}/{leftover}/x", b"x")
    again = opened(str(tmp_path))  # attempt 2
    assert names(again) == ["notes", "step-10", "step-30.2-0badcafe"]


def test_superseded_checkpoints_are_renamed_not_deleted(tmp_path):
    checkpoints = opened(str(tmp_path), keep=5)
    for step in (10, 20, 30):
        save(checkpoints, step)
    again = opened(str(tmp_path), keep=5)
    assert len(again.set_aside(after_step=10)) == 2
    assert names(again) == ["step-10", "superseded-step-20.2", "superseded-step-30.2"]
    save(again, 20)
    assert again.latest(IDENTITY).step == 20


# ------------------------------------------------------------------------------- kill points
KILL = textwrap.dedent(
    """
    import os, signal, sys
    sys.path.insert(0, {root!r})
    from howdah import storage
    from tests.training.checkpoint.test_checkpoint import opened, save
    from howdah.training.checkpoint import manager as checkpoint, write as checkpoint_write

    checkpoints = opened({run!r}, keep=2)
    save(checkpoints, 1)
    save(checkpoints, 2)

    def die(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGKILL)

    {patch}
    save(checkpoints, 3)
    """
)

KILL_POINTS = {
    "mid-write": """
def half(file, arrays):
    file.write(b"x" * 100); file.flush(); die()
checkpoint_write.write_tensors = half""",
    "before the manifest": """
checkpoint.write_manifest = die""",
    "before the rename": "storage.rename_dir = die",
    "before the prune": "checkpoints._prune = die",
    "in the middle of the prune": """
real = storage.remove
storage.remove = lambda path, recursive=False: (
    (real(path + "/manifest.json"), die()) if path.endswith(".pruned")
    and storage.exists(path) else real(path, recursive))""",
}


@pytest.mark.parametrize("point", KILL_POINTS)
def test_sigkill_at_any_point_leaves_a_whole_checkpoint_and_no_litter(tmp_path, point):
    root = str(ROOT)
    script = KILL.format(root=root, run=str(tmp_path), patch=KILL_POINTS[point])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    committed = point in ("before the prune", "in the middle of the prune")
    again = opened(str(tmp_path), keep=2)
    latest = again.latest(IDENTITY)
    assert latest.step == (3 if committed else 2)
    np.testing.assert_array_equal(latest.tensors["model/bias"], tensors(latest.step)["model/bias"])
    assert all(name in ("step-1", "step-2", "step-3") for name in names(again))
    save(again, 4)
    assert [saved.step for saved in again.list()] == [4, latest.step]
    assert names(again) == sorted(f"step-{saved.step}" for saved in again.list())
