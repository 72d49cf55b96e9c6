"""Predicted against measured steps: ranks on hosts of their own behind links cut down to a rate.

Bar: within 20%. Real ranks in network namespaces (root, `ip` and `tc`); Gloo; the model of
training/planning/scaling.py calibrated in the same run. A medium DistilBERT: 3 M parameters, 32
rows.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable

from bench import harness
from howdah.training.planning import calibrate
from tests.runs.network import shaped_hosts
from tests.training.planning.test_scaling_links import measured_step, wide_config

LINKS = {"100mbit": 1e8, "200mbit": 2e8, "500mbit": 5e8, "1gbit": 1e9}
COMPRESSIONS = {"none": LINKS, "bf16": ("200mbit", "1gbit"), "int8": ("200mbit", "1gbit")}
"""`training.gradient_compression`, and the links that it is measured over."""


def main() -> None:
    """Both frameworks, two ranks, what is sent."""
    if shaped_hosts.MISSING:
        print(f"bench scaling: {shaped_hosts.REASON}")
        return
    rows = []
    for framework in ("torch", "tensorflow"):
        for compression, links in COMPRESSIONS.items():
            rows += _measured(framework, compression, links)
    print(f"{'':<20}{'ranks':>6}{'link':>10}{'predicted s':>13}{'measured s':>12}{'off':>7}")
    for framework, compression, ranks, link, predicted, measured in rows:
        off, who = predicted / measured - 1, f"{framework}, {compression}"
        print(f"{who:<20}{ranks:>6}{link:>10}{predicted:>13.3f}{measured:>12.3f}{off:>7.0%}")
    harness.RESULTS.mkdir(exist_ok=True)
    with open(os.path.join(harness.RESULTS, "scaling.json"), "w", encoding="utf-8") as file:
        json.dump({"machine": harness.machine(), "rows": rows}, file, indent=2)


def _measured(framework: str, compression: str, links: Iterable[str]) -> list[list]:
    """[framework, compression, ranks, link, predicted seconds, measured seconds] of each link."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        config = wide_config(directory, framework, compression)
        calibration = calibrate.measure(config, print)
        for one in calibration.compared():
            here = one["predicted_seconds"], one["measured_seconds"]
            rows.append([framework, compression, one["workers"], "loopback", *here])
        for rate in links:
            network = calibration.network(LINKS[rate])
            predicted = calibration.predict_here(2, network).step_seconds
            measured = measured_step(config, directory, 2, rate, calibration)
            rows.append([framework, compression, 2, rate, round(predicted, 4), round(measured, 4)])
    return rows
