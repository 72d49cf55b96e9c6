"""A GPU that was asked for and is not there, with the real frameworks; GPUs are described ones."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from howdah.jobs.driver.faults import fault_of
from howdah.process.devices import CPU, Device, require
from tests import ROOT as REPOSITORY

ROOT = str(REPOSITORY)
_FIND = """
import json, sys
from howdah.process import env
env.prepare(sys.argv[1])
from howdah.process import devices
found = devices.find(sys.argv[1])
try:
    devices.require(sys.argv[1], found)
    refused = None
except Exception as error:
    refused = [type(error).__name__, error.expected, error.got]
print(json.dumps({"kind": found.kind, "refused": refused}))
"""


def devices_found(framework, **env):
    done = subprocess.run(
        [sys.executable, "-c", _FIND, framework], capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": ""} | env, cwd=ROOT,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.mark.parametrize("framework", ["torch", pytest.param("tensorflow", marks=pytest.mark.full)])
def test_a_framework_that_sees_no_gpu_is_refused_where_one_was_asked_for(framework):
    assert devices_found(framework) == {"kind": "CPU", "refused": None}
    reported = devices_found(framework, HOWDAH_GPUS="1", CUDA_VISIBLE_DEVICES="GPU-5c89852c")
    kind, expected, got = reported["refused"]
    assert expected == "1 GPU (job.worker.gpus)"
    assert fault_of({"error": kind, "what": got}, ()) != "job"  # another node may do
    assert "CUDA_VISIBLE_DEVICES='GPU-5c89852c'" in got
    assert f"{framework} " in got


_SET = """
import torch
torch.cuda.is_available, torch.cuda.device_count = (lambda: True), (lambda: 2)
torch.cuda.get_device_name = torch.cuda.get_device_capability = str
torch.cuda.set_device = lambda index: print("set", index)
from howdah.process import devices
print("named", devices.find("torch").name)
"""


def test_a_rank_that_sees_several_gpus_takes_the_one_of_its_number():
    ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    done = subprocess.run(
        [sys.executable, "-c", _SET], capture_output=True, text=True, check=True, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": ROOT, "MASTER_ADDR": "localhost"} | ranks,
    )  # fmt: skip
    assert done.stdout.split() == ["set", "1", "named", "1"]


def test_what_was_asked_for_and_is_there_is_taken():
    require("torch", CPU, {})
    require("torch", CPU, {"HOWDAH_GPUS": "0"})
    require("torch", Device("GPU", "Tesla V100", (7, 0)), {"HOWDAH_GPUS": "1"})


@pytest.mark.parametrize(
    ("capability", "gains"),
    [((7, 0), False), ((7, 5), False), ((8, 0), True), ((9, 0), True), (None, False)],
)
def test_bf16_is_for_gpus_that_have_units_for_it(capability, gains):
    assert Device("GPU", "one", capability).gains_by_bf16 is gains
