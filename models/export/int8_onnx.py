"""The ONNX graph whose encoder computes in 8-bit integers, so that a row's score is its own.

A tool that quantises a graph takes the scale of activations from a whole batch, and a text's score
then depends on its neighbours. Here a scale is either a constant of the graph or computed from one
token's values:

- What a layer norm returns is divided by a constant for each channel and quantised with one
  constant scale. Both come from rows that the float32 graph computes when the export is written.
  Channels differ by up to 30 times: without the division the largest would take all the steps
  (SmoothQuant, Xiao et al. 2022).
- The attention's and the activation's results differ more from token to token: each has its scale.

Weights have a scale for each output. They are rounded such that the error of one weight is
corrected by the later ones of its row, as far as real inputs have both (GPTQ, Frantar et al. 2022).

The embeddings, norms, attention and the classifier compute in float32. The product,
MatMulIntegerToFloat, is onnxruntime's own operator (com.microsoft), which uses AMX and VNNI.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from howdah.models.export.quantised_onnx import DOMAIN, Quantised
from howdah.models.forward.forward_onnx import IDS, MASK, Graph

if TYPE_CHECKING:
    import onnx

_MIDDLE = 128
"""Zero point of values with both signs."""
_GELU_ZERO, _GELU_LEAST = 24, 0.17
"""Zero point of what Gelu returns, and the amount by which its results are below zero at most:
most of the 256 steps are for positive values."""
_SMOOTH = 0.85
"""Share of a channel's range that its constant takes from the activations; the weights get it."""
_ROOM = 1.1
"""The constant scales reach this many times the largest calibrated value; larger ones are cut."""
_DAMPED = 0.01
"""Added to the inputs' second moments, as a share of their mean, so that they can be inverted."""
_COLUMNS = 128
"""Columns of weights that are rounded before the later ones are corrected."""


@dataclass(kw_only=True)
class Inputs:
    """What is known of the inputs [N, I] of linear layers that read the same values."""

    layers: list[str]
    least_I: np.ndarray
    """float32, least value of each channel."""
    largest_I: np.ndarray
    """float32, largest value of each channel."""
    near_I: np.ndarray
    """float32, the first row's mean. The sums are of the inputs less this: where the inputs hardly
    differ, the sums of the inputs themselves would have no digits for the differences."""
    sum_I: np.ndarray
    """float32, sum of each channel."""
    second_II: np.ndarray
    """float32, sum of the tokens' outer products."""
    tokens: int

    def add(self, other: Inputs) -> None:
        """Count further tokens of the same layers."""
        self.least_I = np.minimum(self.least_I, other.least_I)
        self.largest_I = np.maximum(self.largest_I, other.largest_I)
        self.sum_I += other.sum_I
        self.second_II += other.second_II
        self.tokens += other.tokens

    def around(self, middle_I: np.ndarray) -> np.ndarray:
        """Sum of the outer products of the inputs less `middle_I`, float64 [I, I]."""
        less_I = middle_I.astype(np.float64) - self.near_I
        mixed_II = np.outer(less_I, self.sum_I - self.tokens / 2 * less_I)
        return self.second_II - mixed_II - mixed_II.T


def calibrate(
    graph: onnx.ModelProto, rows: Sequence[np.ndarray], *, folder: str, skip: Sequence[str]
) -> list[Inputs]:
    """Run the float32 graph on rows and observe the inputs of its linear layers.

    Args:
        graph: model.onnx, as loaded without its weights; gets further outputs.
        rows: token ids of real rows, at least one.
        folder: the local directory with the graph's weights.
        skip: names of linear layers that stay float32.
    """
    import onnxruntime
    from onnx import TensorProto, helper

    layers_of: dict[str, list[str]] = {}
    for node in graph.graph.node:
        name = node.input[1].removesuffix(".weight") if node.op_type == "Gemm" else None
        if name is not None and name not in skip:
            layers_of.setdefault(node.input[0], []).append(name)
    outputs = [helper.make_tensor_value_info(x, TensorProto.FLOAT, None) for x in layers_of]
    graph.graph.output.extend(outputs)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3  # errors
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    session = onnxruntime.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    observed: dict[str, Inputs] = {}
    for row in rows:
        ids_1T = np.asarray(row, np.int64)[None]
        values = session.run(list(layers_of), {IDS: ids_1T, MASK: np.ones_like(ids_1T)})
        for x, x_NI in zip(layers_of, values, strict=True):
            near_I = observed[x].near_I if x in observed else x_NI.mean(0)
            less_NI = x_NI - near_I
            inputs = Inputs(
                layers=layers_of[x],
                least_I=x_NI.min(0),
                largest_I=x_NI.max(0),
                near_I=near_I,
                sum_I=less_NI.sum(0),
                second_II=less_NI.T @ less_NI,
                tokens=len(x_NI),
            )
            if x in observed:
                observed[x].add(inputs)
            else:
                observed[x] = inputs
    return list(observed.values())


def rounded(
    weight_OI: np.ndarray, scales_O: np.ndarray, second_II: np.ndarray | None
) -> np.ndarray:
    """Weights as int8 [O, I] such that `integers * scales` gives almost the same products.

    Args:
        second_II: sum of the outer products of the layer's inputs; None: each weight is rounded to
            the nearest integer.

    >>> weight, scales = np.array([[1.4, 1.4]]), np.array([1.0])
    >>> rounded(weight, scales, None).tolist()
    [[1, 1]]
    >>> rounded(weight, scales, np.ones((2, 2))).tolist()  # both inputs are always equal
    [[1, 2]]
    """
    weight_OI = weight_OI / scales_O[:, None]
    if second_II is None:
        return np.clip(np.rint(weight_OI), -127, 127).astype(np.int8)
    count = len(second_II)
    damped = max(_DAMPED * float(np.diag(second_II).mean()), 1e-6)
    inverse_II = np.linalg.inv(second_II + damped * np.eye(count))
    upper_II = np.linalg.cholesky(inverse_II).T.astype(np.float32)
    weight_OI = weight_OI.astype(np.float32)
    integers_OI = np.zeros(weight_OI.shape, np.int8)
    for start in range(0, count, _COLUMNS):
        end = min(start + _COLUMNS, count)
        errors = np.zeros((len(weight_OI), end - start), np.float32)
        for at in range(start, end):
            column_O = np.clip(np.rint(weight_OI[:, at]), -127, 127)
            integers_OI[:, at] = column_O
            errors[:, at - start] = (weight_OI[:, at] - column_O) / upper_II[at, at]
            weight_OI[:, at + 1 : end] -= np.outer(
                errors[:, at - start], upper_II[at, at + 1 : end]
            )
        weight_OI[:, end:] -= errors @ upper_II[start:end, end:]
    return integers_OI


class Int8(Quantised):
    """A graph that contains its weights; the linear layers with `inputs` compute in integers, the
    other ones in float32."""

    def __init__(self, weights: Mapping[str, np.ndarray], inputs: Sequence[Inputs]) -> None:
        super().__init__(weights)
        self._inputs = {name: one for one in inputs for name in one.layers}
        self._integers: dict[str, tuple[str, str | None, int]] = {}

    def linear(self, x: str, name: str, *, named: str | None = None) -> str:
        if name not in self._inputs:
            return Graph.linear(self, x, name, named=named)
        inputs = self._inputs[name]
        constant = x.startswith(("layernormalization_", "gather_"))
        weight_OI, bias = self._weights[f"{name}.weight"], self.weight(f"{name}.bias")
        middle_I, channels_I, step = np.zeros(weight_OI.shape[1]), np.float32(1), 1.0
        if constant:
            middle_I, channels_I, step = self._channels(inputs)
            moved_O = self._weights[f"{name}.bias"] + weight_OI @ middle_I
            bias = self.held(f"{name}.bias.moved", moved_O)
        if x not in self._integers:
            self._integers[x] = (
                self._by_constants(x, inputs, middle_I, channels_I, step)
                if constant
                else self._by_token(x)
            )
        integers, scales_N1, zero = self._integers[x]
        weight_OI = weight_OI * channels_I
        largest_O = np.abs(weight_OI).max(1)
        scales_O = (np.where(largest_O == 0, 1, largest_O) / 127).astype(np.float32)
        second_II = inputs.around(middle_I) / np.multiply.outer(channels_I, channels_I)
        tensors = (
            self.held(f"{name}.weight.integers", rounded(weight_OI, scales_O, second_II).T),
            self.constant(step, np.float32),
            self.held(f"{name}.weight.scales", scales_O),
            self.constant(zero, np.uint8),
        )
        kind = "MatMulIntegerToFloat"
        if scales_N1 is None:  # the empty name: weights have no zero points
            return self.add(kind, integers, *tensors, "", bias, named=named, domain=DOMAIN)
        product = self.add(kind, integers, *tensors, domain=DOMAIN)
        return self.add("Add", self.add("Mul", product, scales_N1), bias, named=named)

    def _channels(self, inputs: Inputs) -> tuple[np.ndarray, np.ndarray, float]:
        """(middle of each channel float32 [I], its divisor [I], the one step of all quotients)."""
        weights_I = np.max([np.abs(self._weights[f"{n}.weight"]).max(0) for n in inputs.layers], 0)
        middle_I = (inputs.least_I + inputs.largest_I) / 2
        reach_I = np.maximum(inputs.largest_I - middle_I, 1e-5)
        channels_I = reach_I**_SMOOTH / np.maximum(weights_I, 1e-5) ** (1 - _SMOOTH)
        return middle_I, channels_I, float((reach_I / channels_I).max()) * _ROOM / 127

    def _by_constants(
        self,
        x: str,
        inputs: Inputs,
        middle_I: np.ndarray,
        channels_I: np.ndarray,
        step: float,
    ) -> tuple[str, None, int]:
        """(integers uint8, no scales, their zero point)."""
        middle = self.held(f"{inputs.layers[0]}.middle", middle_I)
        factors = self.held(f"{inputs.layers[0]}.factors", 1 / channels_I)
        scale, zero = self.constant(step, np.float32), self.constant(_MIDDLE, np.uint8)
        centred = self.add("Mul", self.add("Sub", x, middle), factors)
        return self.add("QuantizeLinear", centred, scale, zero), None, _MIDDLE

    def _by_token(self, x: str) -> tuple[str, str, int]:
        """(integers uint8, the tokens' scales float32 [N, 1], their zero point)."""
        from onnx import TensorProto, helper

        gelu = x.startswith("gelu_")
        zero = _GELU_ZERO if gelu else _MIDDLE
        least = _GELU_LEAST / zero if gelu else 1e-20  # of a token of zeros
        magnitudes = x if gelu else self.add("Abs", x)
        largest_N1 = self.add("ReduceMax", magnitudes, self.constant([-1]), keepdims=1)
        steps = self.constant(1 / (255 - zero), np.float32)
        scales_N1 = self.add("Mul", largest_N1, steps)
        scales_N1 = self.add("Max", scales_N1, self.constant(least, np.float32))
        scales_N = self.add("Reshape", scales_N1, self.constant([-1]))
        value = helper.make_tensor("zero", TensorProto.UINT8, [1], [zero])
        zeros_N = self.add("ConstantOfShape", self.add("Shape", scales_N), value=value)
        return self.add("QuantizeLinear", x, scales_N, zeros_N, axis=0), scales_N1, zero
