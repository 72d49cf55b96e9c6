"""The ONNX graph with 8-bit weights inside the file, which makes it small.

Each linear layer's weights are integers with a scale for each block of a row. The runtime's matrix
product quantises each token's activations separately, so a score does not depend on the other rows
of a batch. Each row of the word embeddings has a scale as well. All else stays float32.

The product, MatMulNBits, is onnxruntime's own operator (com.microsoft), not ONNX's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from howdah.models.forward.forward_onnx import Graph, Place

BLOCK = 32
"""Weights of a row that share a scale."""
_MIDDLE = 128
"""Default 8-bit zero point of MatMulNBits."""
DOMAIN = "com.microsoft"
"""Domain of onnxruntime's own operators."""


def quantised(weight_OI: np.ndarray, block: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix as (uint8 [O, blocks, block], float32 scales [O, blocks]), rows filled with zeros.

    >>> integers, scales = quantised(np.array([[1.0, -0.5]], np.float32), 2)
    >>> integers.tolist(), np.round(scales * 127, 3).tolist()
    ([[[255, 64]]], [[1.0]])
    """
    rows, inputs = weight_OI.shape
    blocks = -(-inputs // block)
    filled = np.zeros((rows, blocks * block), np.float32)
    filled[:, :inputs] = weight_OI
    by_block = filled.reshape(rows, blocks, block)
    scales = np.abs(by_block).max(-1) / 127
    safe = np.where(scales == 0, 1, scales)[..., None]  # a block of zeros
    integers = np.rint(by_block / safe) + _MIDDLE
    return integers.astype(np.uint8), scales.astype(np.float32)


class Quantised(Graph):
    """A graph that contains its weights: matrices as integers, the others unchanged.

    Args:
        weights: float32 by Hugging Face's torch names; the encoder's and the classifier's.
    """

    domains: ClassVar[dict[str, int]] = {DOMAIN: 1}

    def __init__(self, weights: Mapping[str, np.ndarray]) -> None:
        places = {n: Place(shape=a.shape, offset=0, length=a.nbytes) for n, a in weights.items()}
        super().__init__(places, "")
        self._weights = weights

    def weight(self, name: str) -> str:
        return self.held(name, self._weights[name])

    def linear(self, x: str, name: str, *, named: str | None = None) -> str:
        weight_OI = self._weights[f"{name}.weight"]
        integers, scales = quantised(weight_OI, BLOCK)
        outputs, inputs = weight_OI.shape
        tensors = (
            self.held(f"{name}.weight.integers", integers),
            self.held(f"{name}.weight.scales", scales.reshape(-1)),
            *("", ""),  # no zero points, no group indices
            self.weight(f"{name}.bias"),
        )
        sizes = {"K": inputs, "N": outputs, "bits": 8, "block_size": BLOCK, "accuracy_level": 4}
        return self.add("MatMulNBits", x, *tensors, named=named, domain=DOMAIN, **sizes)

    def rows(self, table: str, numbers: str) -> str:
        import onnx

        integers, scales = quantised(self._weights[table], self._weights[table].shape[1])
        signed = (integers[:, 0].astype(np.int16) - _MIDDLE).astype(np.int8)
        rows = self.add("Gather", self.held(f"{table}.integers", signed), numbers)
        rows = self.add("Cast", rows, to=onnx.TensorProto.FLOAT)
        of_rows = self.add("Gather", self.held(f"{table}.scales", scales), numbers)
        return self.add("Mul", rows, of_rows)

    def held(self, name: str, array: np.ndarray) -> str:
        """Add an array as an initializer inside the graph; returns its name."""
        from onnx import numpy_helper

        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name
