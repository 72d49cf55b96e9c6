"""Serving with TensorFlow, in a process of its own (tests/support/models/serving_contract.py)."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from howdah.models.opened import runtimes
from tests.support.models.serving_contract import ServingContract


class TestServing(ServingContract):
    framework = "tensorflow"


@pytest.mark.parametrize("started", [False, True])
def test_gpu_memory_grows_with_its_use(started):
    """With simulated devices: tests the settings, not a GPU."""
    calls = []

    def grow(gpu, on):
        if started:
            raise RuntimeError("Physical devices cannot be modified after being initialized")
        calls.append((gpu, on))

    devices = SimpleNamespace(
        list_physical_devices=lambda kind: [f"{kind}:{n}" for n in range(2)],
        experimental=SimpleNamespace(set_memory_growth=grow),
    )
    runtimes._grow_memory(devices)
    assert calls == ([] if started else [("GPU:0", True), ("GPU:1", True)])


def test_memory_growth_is_set_before_tensorflow_starts(monkeypatch):
    order = []
    import tensorflow as tf

    monkeypatch.setattr(runtimes, "_grow_memory", lambda devices: order.append("memory"))
    monkeypatch.setattr(tf, "constant", lambda value: order.append("start"))
    monkeypatch.setattr("howdah.models.forward.forward_tf.build", lambda *words, **settings: None)
    monkeypatch.setattr("howdah.models.forward.forward_tf.forward_fn", lambda net: None)
    runtimes._forward("tensorflow", {}, {}, 2, first_type_ends=None)
    assert order == ["memory", "start"]
