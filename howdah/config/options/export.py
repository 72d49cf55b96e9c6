"""The run configuration's section `export`: what a trained model is written as."""

from __future__ import annotations

from typing import Literal

from howdah.config.types import Section

ExportFormat = Literal["hf", "onnx", "onnx-w8", "onnx-int8", "savedmodel"]
"""Formats of an export (models/export/formats.py)."""


class ExportSection(Section):
    formats: list[ExportFormat] = ["hf"]
    """Formats of an export. hf: the Hugging Face directory, always written. onnx: also written
    wherever the package onnx is installed; if it is listed without the package, that is an error.
    onnx-w8: weights in 8 bits. onnx-int8: activations too, the fastest on CPUs. savedmodel: needs
    TensorFlow. Listed formats are checked against the model's logits."""
