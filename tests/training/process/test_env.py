"""What must be set before a framework is imported: who a rank is, its threads, its GPU."""

import json
import os
import subprocess
import sys

import pytest

from howdah.core import machine
from howdah.errors import UsageError
from howdah.process import env
from howdah.process.env import RankEnv
from tests import ROOT as REPOSITORY

ROOT = str(REPOSITORY)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, RankEnv()),
        (
            {"HOROVOD_RANK": "3", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1",
             "HOROVOD_LOCAL_SIZE": "2"},
            RankEnv(3, 4, 1, 2, "Horovod"),
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2",
             "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            RankEnv(1, 2, 1, 2, "Open MPI"),
        ),
        (
            {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
            RankEnv(3, 4, 1, 2, "torchrun"),
        ),
        ({"RANK": "3", "WORLD_SIZE": "4"}, RankEnv(3, 4, 0, 1, "torchrun")),  # PyTorchJob
        ({"RANK": "3"}, RankEnv()),  # a variable of something else
    ],
)  # fmt: skip
def test_who_a_process_is(monkeypatch, variables, expected):
    for name in list(os.environ):
        if name.startswith(("HOROVOD_", "OMPI_")) or name in ("RANK", "WORLD_SIZE"):
            monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert env.rank_env() == expected


def test_what_the_agent_of_a_job_says_goes_before_what_its_mpirun_says(monkeypatch):
    """Open MPI takes each container for a host: it knows no other ranks of this node."""
    for launcher, local_size in (("OMPI_COMM_WORLD_", 1), ("HOROVOD_", 2)):
        values = {"RANK": 1, "SIZE": 2, "LOCAL_RANK": 0, "LOCAL_SIZE": local_size}
        for name, value in values.items():
            monkeypatch.setenv(launcher + name, str(value))
    assert env.rank_env() == RankEnv(1, 2, 0, 2, "Horovod")


def test_threads_are_cores_by_ranks_and_a_bound_rank_has_its_own(monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 16)
    monkeypatch.delenv("OMPI_MCA_orte_bound_at_launch", raising=False)
    assert [env.threads_per_rank(n) for n in (1, 2, 3, 64)] == [16, 8, 5, 1]
    monkeypatch.setenv("OMPI_MCA_orte_bound_at_launch", "1")
    assert env.threads_per_rank(4) == 16


def prepared(framework: str, **variables: str) -> dict[str, str]:
    """The environment that `prepare` sets in a process of its own."""
    script = f"""
import json, os, sys
sys.path.insert(0, {ROOT!r})
from howdah.process import env
from howdah.errors import HowdahError
try:
    env.prepare({framework!r}, threads=3)
except HowdahError as error:
    print(json.dumps({{"error": error.what}}))
else:
    print(json.dumps(dict(os.environ)))
"""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "OMPI_"))}
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True,
        env=clean | variables,
    )  # fmt: skip
    return json.loads(done.stdout)


def test_one_framework_and_its_threads():
    environment = prepared("torch")
    assert (environment["USE_TORCH"], environment["USE_TF"]) == ("1", "0")
    assert environment["OMP_NUM_THREADS"] == "3"
    environment = prepared("tensorflow")
    assert (environment["USE_TORCH"], environment["USE_TF"]) == ("0", "1")
    assert environment["TF_USE_LEGACY_KERAS"] == "1"
    assert environment["TF_NUM_INTRAOP_THREADS"] == "3"


def test_each_rank_sees_one_gpu_and_more_ranks_than_gpus_are_refused():
    rank = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1",
            "HOROVOD_LOCAL_SIZE": "2"}  # fmt: skip
    assert prepared("torch", CUDA_VISIBLE_DEVICES="4,6", **rank)["CUDA_VISIBLE_DEVICES"] == "6"
    assert prepared("torch", CUDA_VISIBLE_DEVICES="", **rank)["CUDA_VISIBLE_DEVICES"] == ""
    # The usual way to say CPU, and what CUDA makes of a list with an invalid number.
    assert prepared("torch", CUDA_VISIBLE_DEVICES="-1", **rank)["CUDA_VISIBLE_DEVICES"] == "-1"
    environment = prepared("torch", CUDA_VISIBLE_DEVICES="4,-1,6", **rank)
    assert environment["error"] == "more ranks than GPUs on this node"
    environment = prepared("torch", CUDA_VISIBLE_DEVICES="4", **rank)
    assert environment["error"] == "more ranks than GPUs on this node"


def test_a_second_framework_in_a_process_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", object())
    with pytest.raises(UsageError, match="one process holds one framework"):
        env.prepare("tensorflow")
