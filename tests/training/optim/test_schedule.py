"""Learning rate by step: transformers' schedules, scaling, numbers of steps."""

import json
import os
import subprocess
import sys

import pytest

from howdah.config.training import TrainingSection
from howdah.training.optim.schedule import Schedule, total_steps, warmup_steps

PEERS = """
import json, os, sys
os.environ["USE_TF"] = "0"
import torch
from transformers import get_scheduler
out = {}
for name in ("linear", "cosine", "constant_with_warmup"):
    for warmup in (0, 5):
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-5)
        schedule = get_scheduler(name, optimizer, warmup, 23)
        rates = []
        for _ in range(23):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step(); schedule.step()
        out[f"{name} {warmup}"] = rates
print(json.dumps(out))
"""


def test_the_rates_are_those_of_transformers():
    done = subprocess.run(
        [sys.executable, "-c", PEERS], capture_output=True, text=True, check=True,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    for key, rates in json.loads(done.stdout.splitlines()[-1]).items():
        name, warmup = key.split()
        ours = Schedule(peak=2e-5, steps=23, warmup=int(warmup), decay=name.split("_")[0])
        assert [ours.lr(step) for step in range(23)] == pytest.approx(rates, rel=1e-12, abs=1e-18)


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_the_rate_ends_at_zero_and_stays_there(decay):
    schedule = Schedule(peak=1.0, steps=10, warmup=3, decay=decay)
    assert schedule.lr(3) == 1.0
    assert schedule.lr(10) == pytest.approx(0.0)
    assert schedule.lr(11) == pytest.approx(0.0)


def test_a_warm_up_longer_than_the_run_only_rises():
    schedule = Schedule(peak=1.0, steps=4, warmup=8, decay="linear")
    assert [schedule.lr(step) for step in range(4)] == [0.0, 0.125, 0.25, 0.375]


@pytest.mark.parametrize(
    ("epochs", "per_epoch", "expected"), [(3.0, 10, 30), (0.1, 30, 3), (0.5, 3, 2), (0.01, 10, 1)]
)
def test_steps_of_epochs_and_of_parts_of_one(epochs, per_epoch, expected):
    assert total_steps(TrainingSection(num_train_epochs=epochs), per_epoch) == expected


def test_max_steps_overrides_epochs():
    assert total_steps(TrainingSection(num_train_epochs=3, max_steps=7), 100) == 7


def test_warmup_steps_are_the_ratio_of_all_rounded_up():
    assert warmup_steps(TrainingSection(warmup_ratio=0.1), 101) == 11
