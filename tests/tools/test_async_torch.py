"""The bench of asynchronous updates: what it counts, and both ways for real, shortly."""

import importlib
import json
from itertools import pairwise

import numpy as np
import pytest
import torch

bench = importlib.import_module("bench.benches.async")  # the name is a word of Python's
ways = importlib.import_module("bench.benches.async.parameter_server")


def test_a_loss_is_reached_by_the_mean_of_five_updates():
    seconds = np.arange(10.0)
    losses = np.array([9, 9, 0, 9, 9, 1, 1, 1, 1, 1])  # the 0 is luck
    assert bench.reached(seconds, losses, 1.0) == (9.0, 9)
    assert bench.reached(seconds, losses, 0.5) is None


@pytest.mark.full
def test_both_ways_learn_and_count_what_they_did(tmp_path, monkeypatch):
    results = {}
    for way, (work, ranks) in bench._WAYS.items():
        path = str(tmp_path / way)
        arguments = (path + ".meet", 1, 1.0, 60, path)
        torch.multiprocessing.spawn(work, args=arguments, nprocs=ranks)
        with open(path + ".json", encoding="utf-8") as file:
            results[way] = json.load(file), np.load(path + ".npz")
    rows, labels = (torch.from_numpy(each) for each in ways.digits()[2:])
    for more, kept in results.values():
        assert len(kept["weights"]) == len(kept["seconds"]) == 61
        assert all(before < after for before, after in pairwise(kept["seconds"].tolist()))
        first, last = (ways.loss_of(torch.from_numpy(kept["weights"][n]), rows, labels)
                       for n in (0, -1))  # fmt: skip
        assert last < first
        assert min(more["staleness"]) >= 0
    reduced, served = results["all-reduce"][0], results["server"][0]
    assert reduced["by"].count(0) == reduced["by"].count(1) == 60
    assert set(reduced["staleness"]) == {0}
    assert len(served["by"]) == len(served["staleness"]) == 60 and set(served["by"]) == {0, 1}
    assert max(served["staleness"]) > 0  # the other worker's updates came between
