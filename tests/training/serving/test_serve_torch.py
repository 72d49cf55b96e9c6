"""Serving with PyTorch, in a process of its own (tests/support/serving_contract.py)."""

from __future__ import annotations

from tests.support.serving_contract import ServingContract


class TestServing(ServingContract):
    framework = "torch"
