"""The model's prediction against ranks on hosts with slow links between them."""

from __future__ import annotations

import os
import statistics
import sys

import pytest

from howdah.config import loader as configuration
from howdah.config.loader import dump_yaml
from howdah.training.planning import calibrate, short_runs
from howdah.training.planning.calibrate import Calibration
from tests.fixtures.dataset import build_dataset
from tests.runs.network import gloo_ranks, shaped_hosts
from tests.runs.network.shaped_hosts import ShapedHosts
from tests.runs.training_runs import ROOT
from tests.support.models.tiny_model import write_tiny_model

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.full,
    pytest.mark.skipif(shaped_hosts.MISSING, reason=shaped_hosts.REASON),
]
_BITS = {"mbit": 1e6, "gbit": 1e9}


def wide_config(directory: str, framework: str, compression: str = "none"):
    """A training whose gradient is large for its compute: 3 M parameters, a few rows."""
    base = write_tiny_model(os.path.join(directory, "base"), n_layers=4, dim=256, hidden_dim=1024)
    dataset = build_dataset(
        os.path.join(directory, "data", "v=0"),
        model_dir=base,
        rows={"train": 1920, "validation": 8},
    )
    return configuration.from_dict(
        {
            "run": {"directory": os.path.join(directory, "run")},
            "data": {"dataset": dataset.path, "max_length": 64},
            "model": {"base": base},
            "training": {
                "framework": framework,
                "global_batch_size": 32,
                "precision": "fp32",
                "gradient_compression": compression,
            },
        }
    )


def measured_step(config, directory: str, ranks: int, rate: str, calibration: Calibration) -> float:
    """Seconds per step of ranks, each on its own host behind a link of that rate."""
    short = short_runs.short(
        config, os.path.join(directory, f"{ranks}-{rate}"), 32, calibration.threads
    )
    os.makedirs(short.run.directory)
    path = os.path.join(short.run.directory, "given.yaml")
    with open(path, "w", encoding="utf-8") as file:
        file.write(dump_yaml(short))
    argv = [sys.executable, "-m", "howdah.training", "--config", path]
    env = os.environ | {"PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": ""}
    with ShapedHosts(ranks, rate) as hosts:
        rendezvous = gloo_ranks.Rendezvous(address=hosts.address, interface="eth0", one_host=False)
        try:
            argvs = [hosts.inside(rank, argv) for rank in range(ranks)]
            done = gloo_ranks.run(argvs, env, rendezvous)
        finally:
            rendezvous.close()
    assert [code for code, _ in done] == [0] * ranks, done[0][1][-2000:]
    rates = short_runs.rates(os.path.join(short.run.directory, "metrics.jsonl"))
    return statistics.median(32 / rates[step] for step in calibration.steps)


@pytest.mark.parametrize("compression", ["none", "bf16", "int8"])
@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_predicted_steps_over_slow_links_are_within_a_fifth(tmp_path, framework, compression):
    config = wide_config(str(tmp_path), framework, compression)
    calibration = calibrate.measure(config, print)
    off = {}
    for rate in ("200mbit", "1gbit"):
        speed = float(rate[:-4]) * _BITS[rate[-4:]]
        predicted = calibration.predict_here(2, calibration.network(speed)).step_seconds
        measured = measured_step(config, str(tmp_path), 2, rate, calibration)
        off[rate] = (predicted, measured, predicted / measured - 1)
        print(f"{framework} 2 ranks {rate}: predicted {predicted:.3f} s, measured {measured:.3f} s")
    print(calibration.compared())
    assert all(abs(error) <= 0.2 for *_, error in off.values()), off
