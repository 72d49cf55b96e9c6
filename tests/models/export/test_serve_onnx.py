"""Serving with onnxruntime (tests/support/models/serving_contract.py), and its own promises."""

from __future__ import annotations

from tests.support.models.serving_contract import ServingContract


class TestServing(ServingContract):
    framework = "onnx"
    trained_with = "torch"
