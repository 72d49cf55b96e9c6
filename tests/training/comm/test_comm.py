"""Every primitive of training/comm/base.py over real Horovod and torch.distributed, and alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types

import numpy as np
import pytest

from howdah.config.launchers import LAUNCHERS
from howdah.config.training import TrainingSection
from howdah.doctor import packages
from howdah.errors import ClusterError, ConfigError
from howdah.training.comm import backends
from howdah.training.comm.base import SoloComm, split_apart, split_evenly
from tests.runs.training_runs import LAUNCH_SECONDS, ROOT, launcher

# The default pairs; `make test-all` runs the others.
WORLDS = [
    pytest.param("tensorflow", "horovodrun", 2, marks=pytest.mark.mpi),
    pytest.param("torch", "torchrun", 3, marks=pytest.mark.mpi),
    pytest.param("torch", "mpirun", 2, marks=[pytest.mark.mpi, pytest.mark.full]),
    pytest.param("torch", "torchrun", 2, marks=[pytest.mark.mpi, pytest.mark.full]),
    pytest.param("torch", "horovodrun", 2, marks=[pytest.mark.mpi, pytest.mark.full]),
    pytest.param("tensorflow", "mpirun", 2, marks=[pytest.mark.mpi, pytest.mark.full]),
    pytest.param("torch", "horovodrun", 3, marks=[pytest.mark.mpi, pytest.mark.full]),
    pytest.param("tensorflow", "mpirun", 3, marks=[pytest.mark.mpi, pytest.mark.full]),
]


@pytest.mark.parametrize(("framework", "kind", "size"), WORLDS)
def test_every_primitive_on_every_rank(tmp_path, framework, kind, size):
    path = os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"]
    worker = [sys.executable, "-m", "tests.workers.comm", framework, str(tmp_path)]
    done = subprocess.run(
        [*launcher(kind, size), *worker],
        cwd=ROOT,
        env=os.environ | {"PATH": path, "PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LAUNCH_SECONDS,
    )
    assert done.returncode == 0, done.stdout
    ranks = range(size)
    total = float(sum(rank + 1 for rank in ranks))
    seen = [json.loads((tmp_path / f"rank.{rank}.json").read_text()) for rank in ranks]
    assert [one["rank"] for one in seen] == list(ranks)
    backend = {"mpirun": "horovod (mpi)", "horovodrun": "horovod (gloo)",
               "torchrun": "torch.distributed (gloo)"}[kind]  # fmt: skip
    for one in seen:
        assert (one["size"], one["backend"]) == (size, backend)
        assert one["sum"] == [size, total - size, size * 2.0**40 + total - size]
        rows = [r for rank in ranks for r in (np.arange(2 * rank).reshape(rank, 2) + 10 * rank)]
        assert one["gather"] == [[float(x) for x in row] for row in rows]
        assert one["gather_none"] == [0, 3]
        assert one["gather_int"] == [x for rank in ranks for x in (rank, 2**40)]
        assert one["gather_json"] == [{"rank": r, "text": "é" * (r + 1)} for r in ranks]
        assert one["broadcast"] == {
            "a": ["float32", [[1.0] * 3] * 2],
            "scalar": ["int64", 5],
            "none": ["float32", []],
        }
        assert one["broadcast_json"] == {"from": 0, "text": "Größe"}
        assert one["agree"] == [True, False]
        for key in ("gradients", "gradients_in_graph"):
            assert one[key] == [[total] * 3, [[0.5 * size] * 2] * 2]
        assert one["row_ids"] == [x for rank in ranks for x in (rank, 7)]
        assert one["row_values"] == [[rank + 1.0] * 4 for rank in ranks for _ in range(2)]
        if framework == "torch":
            assert one["divided"]["exchanged"]
            assert one["divided"]["own"] == [total] * (2 + one["rank"])
            assert one["divided"]["all"] == [[total] * (2 + rank) for rank in ranks]
        if "gloo" in backend:  # MPI polls until the machine runs the other rank
            assert one["others_woken"] < 300, one["others_woken"]  # each millisecond: 500 at least
    if framework == "torch":
        assert seen[0]["divided"]["fetched"] == [[float(rank), "-0.0"] for rank in ranks]
    assert seen[0]["used_waiting"] < 0.1  # hvd.synchronize() in torch polled: 0.4


# ------------------------------------------------------------------------------- a world of one
@pytest.fixture
def no_launcher(monkeypatch):
    for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE"):
        monkeypatch.delenv(f"HOROVOD_{name}", raising=False)
        monkeypatch.delenv(f"OMPI_COMM_WORLD_{name}", raising=False)
    monkeypatch.delenv("RANK", raising=False)


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_a_world_of_one_needs_no_horovod(no_launcher, framework):
    comm = backends.init(framework)
    assert isinstance(comm, SoloComm)
    assert not any(name.split(".")[0] == "horovod" for name in sys.modules)
    assert (comm.rank, comm.size) == (0, 1)
    assert comm.sum(np.array([2.0])).tolist() == [2.0]
    assert comm.gather_json({"a": [1, "ü"]}) == [{"a": [1, "ü"]}]
    assert comm.broadcast_json(None) is None
    assert comm.agree(True) and not comm.agree(False)
    arrays = {"x": np.arange(3)}
    assert comm.broadcast(arrays)["x"] is arrays["x"]


def test_without_horovod_the_error_of_several_ranks_names_make_setup(no_launcher, monkeypatch):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setitem(
        sys.modules, "howdah.training.comm.horovod_torch", None
    )  # importing it fails
    with pytest.raises(
        ClusterError, match="Horovod for torch, which 2 ranks need, cannot be loaded"
    ) as caught:
        backends.init("torch")
    assert "cannot be loaded" in caught.value.what
    assert "make setup" in caught.value.remedy


@pytest.mark.parametrize(
    ("launcher", "framework", "choice", "loaded", "carrier"),
    [
        ("mpirun", "torch", "auto", True, "horovod"),
        ("mpirun", "torch", "auto", False, "torch"),
        ("mpirun", "torch", "torch", True, "torch"),
        ("horovodrun", "torch", "horovod", False, "horovod"),  # asked for: refused when it loads
        ("mpirun", "tensorflow", "auto", False, "horovod"),
        ("torchrun", "torch", "auto", True, "torch"),
        ("torchrun", "torch", "torch", False, "torch"),
        ("torchrun", "torch", "horovod", True, ConfigError),
        ("torchrun", "tensorflow", "auto", True, ConfigError),
    ],
)
def test_what_carries_sums(monkeypatch, launcher, framework, choice, loaded, carrier):
    libraries = {"torch": "lib.so"} if loaded else None
    monkeypatch.setattr(packages, "horovod_libraries", lambda: libraries)
    if carrier is ConfigError:
        with pytest.raises(ConfigError):
            backends.carrier(LAUNCHERS[launcher], framework, choice)
    else:
        assert backends.carrier(LAUNCHERS[launcher], framework, choice) == carrier


@pytest.mark.parametrize(
    ("visible", "needed", "carrier"),
    [
        ("0", ("libc.so.6",), "torch"),
        ("0", ("libc.so.6", "libnccl.so.2"), "horovod"),
        ("", ("libc.so.6",), "horovod"),
    ],
)
def test_sums_of_gpus_need_a_horovod_with_nccl(monkeypatch, visible, needed, carrier):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(packages, "horovod_libraries", lambda: {"torch": "lib.so"})
    monkeypatch.setattr(packages.elf, "read", lambda path: types.SimpleNamespace(needed=needed))
    assert backends.carrier(LAUNCHERS["mpirun"], "torch") == carrier


@pytest.mark.parametrize("choice", ["auto", "horovod", "torch"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_parameters_are_divided_over_torch_distributed_alone(monkeypatch, launcher, choice):
    monkeypatch.setattr(packages, "horovod_carries", lambda framework, gpu: True)
    training = TrainingSection(framework="torch", comm=choice, parallel={"shard": "full"})
    if choice == "torch" or (launcher, choice) == ("torchrun", "auto"):
        backends.require_parallel(LAUNCHERS[launcher], training)
        return
    with pytest.raises(ConfigError) as caught:
        backends.require_parallel(LAUNCHERS[launcher], training)
    if launcher != "torchrun":  # there Horovod itself is refused
        assert "training.comm to torch" in caught.value.remedy


# -------------------------------------------------------------------------------------- messages
@pytest.mark.parametrize("groups", [None, 1, 2, 3, 7, 100])
@pytest.mark.parametrize("sizes", [[5], [1, 1, 1], [100, 1, 1, 50, 2, 2, 30], list(range(1, 60))])
def test_groups_of_messages_are_complete_ascending_and_as_many_as_requested(sizes, groups):
    groups_of_sizes = split_evenly(sizes, groups, most=64)
    assert len(groups_of_sizes) == len(sizes)
    count = min(len(sizes), groups or -(-sum(sizes) // 64))
    assert sorted(set(groups_of_sizes)) == list(range(count))
    assert groups_of_sizes == sorted(groups_of_sizes)


@pytest.mark.parametrize("sizes", [[5], [80], [1, 64, 1], [100, 1, 1, 50, 2, 2, 30, 70]])
def test_large_tensors_are_sent_alone_and_small_ones_joined(sizes):
    grouping = split_apart(sizes, None, alone=64)
    by_group = {
        group: [size for size, its in zip(sizes, grouping, strict=True) if its == group]
        for group in grouping
    }
    assert sorted(by_group) == list(range(len(by_group)))
    assert all(len(group) == 1 for group in by_group.values() if max(group) >= 64)
    assert sum(min(group) < 64 for group in by_group.values()) <= 1
    assert split_apart(sizes, 2, alone=64) == split_evenly(sizes, 2)


def test_small_tensors_are_joined_to_messages_of_a_size():
    grouping = split_apart([40] * 30 + [70], None, alone=64, most=512)
    assert [grouping.count(group) for group in range(4)] == [10, 10, 10, 1]


def test_groups_are_of_about_the_same_size():
    grouping = split_evenly([10] * 100, 4)
    assert [grouping.count(group) for group in range(4)] == [25] * 4
