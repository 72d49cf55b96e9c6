"""Predicted against measured steps: ranks on hosts of their own behind links cut down to a rate.

Bar: within 20%. Real ranks in network namespaces (root, `ip` and `tc`); Gloo; the model of
training/planning/scaling.py calibrated in the same run. A medium DistilBERT: 3 M parameters, 32
rows.
"""

from __future__ import annotations

import json
import os
import tempfile

from bench import harness
from howdah.training.planning import calibrate
from tests.runs.network import shaped_hosts
from tests.training.planning.test_scaling_links import measured_step, wide_config

LINKS = {"100mbit": 1e8, "200mbit": 2e8, "500mbit": 5e8, "1gbit": 1e9}


def main() -> None:
    """Both frameworks, two ranks, four speeds."""
    if shaped_hosts.MISSING:
        print(f"bench scaling: {shaped_hosts.REASON}")
        return
    rows = []
    for framework in ("torch", "tensorflow"):
        with tempfile.TemporaryDirectory() as directory:
            config = wide_config(directory, framework)
            calibration = calibrate.measure(config, print)
            for one in calibration.compared():
                rows.append([framework, one["workers"], "loopback",
                             one["predicted_seconds"], one["measured_seconds"]])  # fmt: skip
            for rate, speed in LINKS.items():
                predicted = calibration.predict_here(2, calibration.network(speed)).step_seconds
                measured = measured_step(config, directory, 2, rate, calibration)
                rows.append([framework, 2, rate, round(predicted, 4), round(measured, 4)])
    print(
        f"{'framework':<12}{'ranks':>6}{'link':>10}{'predicted s':>13}{'measured s':>12}{'off':>7}"
    )
    for framework, ranks, link, predicted, measured in rows:
        off = predicted / measured - 1
        print(f"{framework:<12}{ranks:>6}{link:>10}{predicted:>13.3f}{measured:>12.3f}{off:>7.0%}")
    harness.RESULTS.mkdir(exist_ok=True)
    with open(os.path.join(harness.RESULTS, "scaling.json"), "w", encoding="utf-8") as file:
        json.dump({"machine": harness.machine(), "rows": rows}, file, indent=2)
