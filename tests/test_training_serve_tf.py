"""Serving with TensorFlow, in a process of its own (tests/serving_contract.py)."""

from __future__ import annotations

from tests.serving_contract import ServingContract


class TestServing(ServingContract):
    framework = "tensorflow"
