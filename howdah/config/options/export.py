"""The run configuration's section `export`: what a trained model is written as."""

from __future__ import annotations

from typing import Literal

from howdah.config.types import Section

ExportFormat = Literal["hf", "onnx", "onnx-w8", "onnx-int8", "savedmodel"]
"""Formats of an export (models/export/formats.py)."""


class ExportSection(Section):
    formats: list[ExportFormat] = ["hf"]
    """What an export holds: hf, the Hugging Face directory, which is always there; onnx, which is
    there as well wherever the package onnx is installed, and must be if it is named; onnx-w8,
    weights in 8 bits; onnx-int8, activations too, the fastest on CPUs; savedmodel, which needs
    TensorFlow. Those that are named are checked against the model's logits."""
