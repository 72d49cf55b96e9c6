"""Serving with onnxruntime (tests/support/serving_contract.py), and what it alone promises."""

from __future__ import annotations

from tests.support.serving_contract import ServingContract


class TestServing(ServingContract):
    framework = "onnx"
    trained_with = "torch"
