"""Classifiers as an ONNX graph whose weights stay in the export's model.safetensors.

ONNX lets a graph's initializers name a file beside it, an offset and a length. safetensors stores
the same bytes as ONNX does (float32, row by row), and a linear layer's weight [outputs, inputs] is
what `Gemm` takes with transB=1. So the graph is written from the family's record without a
framework, in milliseconds, and holds no weight (docs/decisions/exports.md).

The graph uses only operators of ONNX itself, so that any runtime can read it. Inputs and output
have the names that Hugging Face's exports use.

A family (data/family.py) names its tensors and its forward pass, one of FORWARD_PASSES.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from howdah.data.family import ModelFamily, family_of
from howdah.errors import ModelError
from howdah.models.weights.parameters import BLOCKED

if TYPE_CHECKING:
    import onnx

OPSET = 20
"""The first opset with Gelu; onnxruntime reads it from version 1.17 on."""
_IR_VERSION = 9
"""The oldest IR version that may hold this opset."""
IDS, MASK, LOGITS = "input_ids", "attention_mask", "logits"


@dataclass(frozen=True, kw_only=True)
class Place:
    """Location of a tensor's bytes in a file: float32, little-endian, row by row."""

    shape: tuple[int, ...]
    offset: int
    """Offset of its first byte in the file."""
    length: int
    """Number of bytes."""


def build(
    config: Mapping,
    places: Mapping[str, Place],
    *,
    weights_file: str,
    first_type_ends: int | None = None,
    metadata: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """The graph (input_ids, attention_mask int64 [B, T]) -> logits float32 [B, C].

    Args:
        config: config.json, defaults filled in.
        places: location of every tensor of the encoder and the classifier, by its Hugging Face
            torch name.
        weights_file: the file's name, in the directory that the graph will be in.
        first_type_ends: for pairs (Encoder.first_type_ends); None: all tokens have type 0.
        metadata: keys and values for the ONNX model's metadata.
    Raises:
        ModelError: the family has no graph, or does not have the activation.
    """
    return assembled(Graph(places, weights_file), config, first_type_ends, metadata)


def assembled(
    graph: Graph,
    config: Mapping,
    first_type_ends: int | None,
    metadata: Mapping[str, str] | None,
) -> onnx.ModelProto:
    """The ONNX model of a forward pass; see `build`.

    Args:
        graph: an empty graph; its class decides how weights are stored.
    """
    from onnx import TensorProto, helper

    family = require(config)
    FORWARD_PASSES[family.forward](graph, config, first_type_ends).write()
    classes = graph.shape(f"{family.head[-1]}.weight")[0]
    proto = helper.make_graph(
        graph.nodes,
        family.architecture,
        [helper.make_tensor_value_info(n, TensorProto.INT64, ["B", "T"]) for n in (IDS, MASK)],
        [helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ["B", classes])],
        [*graph.initializers.values(), *graph.constants.values()],
    )
    versions = {"": OPSET, **graph.domains}
    model = helper.make_model(
        proto,
        opset_imports=[helper.make_opsetid(name, number) for name, number in versions.items()],
        ir_version=_IR_VERSION,
        producer_name="howdah",
    )
    helper.set_model_props(model, dict(metadata or {}))
    return model


def require(config: Mapping) -> ModelFamily:
    """The model's family, after a check that it has a graph.

    Raises:
        ModelError: the family has no graph, or does not have the activation.
    """
    family = family_of(config)
    family.check_activation(config)
    if family.forward not in FORWARD_PASSES:
        raise ModelError(
            f"a {family.title} has no ONNX graph",
            remedy="use one of its frameworks: " + " or ".join(family.frameworks),
        )
    return family


class Graph:
    """Nodes and initializers of a graph that is being built; weights are in a file beside it."""

    domains: ClassVar[dict[str, int]] = {}
    """{domain: version} of operators that are not part of ONNX."""

    def __init__(self, places: Mapping[str, Place], weights_file: str) -> None:
        self._places = places
        self._file = weights_file
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.constants: dict[str, onnx.TensorProto] = {}

    def add(self, kind: str, *inputs: str, named: str | None = None, **attributes: Any) -> str:
        """Add a node with one output; returns the output's name."""
        from onnx import helper

        output = named or f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [output], name=output, **attributes))
        return output

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self._places[name].shape

    def weight(self, name: str) -> str:
        """Add a tensor of the weights' file as an initializer; returns its name."""
        import onnx

        if name not in self.initializers:
            place = self._places[name]
            types = onnx.TensorProto
            tensor = types(name=name, dims=place.shape, data_type=types.FLOAT)
            tensor.data_location = types.EXTERNAL
            location = {"location": self._file, "offset": place.offset, "length": place.length}
            for key, value in location.items():
                tensor.external_data.add(key=key, value=str(value))
            self.initializers[name] = tensor
        return name

    def linear(self, x: str, name: str, *, named: str | None = None) -> str:
        """Add the product of x [rows, inputs] with the linear layer of this name."""
        weight_OI, bias_O = (self.weight(f"{name}.{part}") for part in ("weight", "bias"))
        return self.add("Gemm", x, weight_OI, bias_O, transB=1, named=named)

    def rows(self, table: str, numbers: str) -> str:
        """Add a look-up of the rows of a large table by their numbers."""
        return self.add("Gather", self.weight(table), numbers)

    def constant(self, value: Any, dtype: type = np.int64) -> str:
        """Add a small constant, which the graph itself contains."""
        from onnx import numpy_helper

        array = np.asarray(value, dtype)
        name = f"{array.dtype}_{'_'.join(map(str, array.reshape(-1)))}_{array.ndim}"
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(array, name)
        return name


class EncoderGraph:
    """The forward pass "post-norm" (models/forward/forward_torch.py: EncoderClassifier).

    N is B * T: between attentions all tokens are rows of one matrix, since `Gemm` takes matrices.
    """

    def __init__(self, graph: Graph, config: Mapping, first_type_ends: int | None) -> None:
        self.graph = graph
        self.config = config
        self.family = family_of(config)
        self.first_type_ends = first_type_ends
        self.width = int(config[self.family.keys.width])
        self.heads = int(config[self.family.keys.heads])

    def write(self) -> None:
        """Add all nodes; the output of the last one is LOGITS."""
        add, constant, family = self.graph.add, self.graph.constant, self.family
        part = family.layer
        shape_2 = add("Shape", IDS)
        by_head = constant([self.heads, self.width // self.heads])
        self.split_4 = add("Concat", shape_2, by_head, axis=0)  # [B, T, heads, D / heads]
        self.tokens_3 = add("Concat", shape_2, constant([self.width]), axis=0)  # [B, T, D]
        self.first_split_4 = constant([-1, 1, self.heads, self.width // self.heads])
        self.rows_2 = constant([-1, self.width])  # [N, D]
        hidden_ND = self._embed(shape_2)
        blocked_B11T = self._blocked()
        layers = int(self.config[family.keys.layers])
        for number in range(layers):
            layer = family.layer_name(number)
            # The last layer computes only the first token: the head reads no other.
            first_only = number == layers - 1
            query_QD = self._first(hidden_ND) if first_only else hidden_ND
            attended_QD = self._attend(query_QD, hidden_ND, blocked_B11T, layer, first_only)
            query_QD = self._norm(add("Add", attended_QD, query_QD), layer + part.attention_norm)
            inner_QH = self.graph.linear(query_QD, layer + part.inner)
            inner_QH = self._activated(inner_QH, self.config[family.activation])
            outer_QD = self.graph.linear(inner_QH, layer + part.outer)
            hidden_ND = self._norm(add("Add", outer_QD, query_QD), layer + part.output_norm)
        inner, outer = family.classifier_layers
        first_BD = self._activated(self.graph.linear(hidden_ND, inner), family.head_activation)
        self.graph.linear(first_BD, outer, named=LOGITS)

    def _embed(self, shape_2: str) -> str:
        add, constant, family = self.graph.add, self.graph.constant, self.family
        words_BTD = self.graph.rows(family.word_embeddings, IDS)
        first = family.first_position(self.config)
        tokens_1 = add("Slice", shape_2, constant([1]), constant([2]))
        end_1 = add("Add", tokens_1, constant([first])) if first else tokens_1
        table = self.graph.weight(family.position_embeddings)
        positions_TD = add("Slice", table, constant([first]), end_1, constant([0]))
        embedded_BTD = add("Add", words_BTD, positions_TD)
        if family.token_type_table:
            types = self.graph.weight(family.token_type_embeddings)
            numbers = self._types()
            embedded_BTD = add("Add", embedded_BTD, add("Gather", types, numbers))
        flat_ND = add("Reshape", embedded_BTD, self.rows_2)
        return self._norm(flat_ND, family.prefix + family.embeddings + family.embeddings_norm)

    def _types(self) -> str:
        """Token types: [B, T] for pairs, else a scalar."""
        add, constant = self.graph.add, self.graph.constant
        if self.first_type_ends is None or int(self.config[self.family.keys.token_types]) == 1:
            return constant(0)
        import onnx

        ends_BT = add("Equal", IDS, constant(self.first_type_ends))
        ends_BT = add("Cast", ends_BT, to=onnx.TensorProto.INT64)
        behind_BT = add("Greater", add("CumSum", ends_BT, constant(1)), ends_BT)
        return add("Cast", behind_BT, to=onnx.TensorProto.INT64)

    def _blocked(self) -> str:
        """The mask added to the scores [B, heads, Q, T]: 0 for tokens, BLOCKED for padding."""
        import onnx

        add, constant = self.graph.add, self.graph.constant
        mask_BT = add("Cast", MASK, to=onnx.TensorProto.FLOAT)
        padding_BT = add("Sub", constant(1.0, np.float32), mask_BT)
        blocked_BT = add("Mul", padding_BT, constant(BLOCKED, np.float32))
        return add("Unsqueeze", blocked_BT, constant([1, 2]))

    def _first(self, hidden_ND: str) -> str:
        """[B, D]: each row's first token."""
        add = self.graph.add
        hidden_BTD = add("Reshape", hidden_ND, self.tokens_3)
        return add("Gather", hidden_BTD, self.graph.constant(0), axis=1)

    def _attend(
        self, query_QD: str, hidden_ND: str, blocked_B11T: str, layer: str, first_only: bool
    ) -> str:
        add, part = self.graph.add, self.family.layer
        scale = self.graph.constant((self.width // self.heads) ** -0.5, np.float32)

        def split(x: str, name: str, order: list[int], shape: str) -> str:
            projected = self.graph.linear(x, layer + name)
            by_head = add("Reshape", projected, shape)  # [B, T, heads, D / heads]
            return add("Transpose", by_head, perm=order)

        query_split_4 = self.first_split_4 if first_only else self.split_4
        query = add("Mul", split(query_QD, part.query, [0, 2, 1, 3], query_split_4), scale)
        key = split(hidden_ND, part.key, [0, 2, 3, 1], self.split_4)  # [B, heads, D / heads, T]
        value = split(hidden_ND, part.value, [0, 2, 1, 3], self.split_4)
        scores_BHQT = add("Add", add("MatMul", query, key), blocked_B11T)
        weights_BHQT = add("Softmax", scores_BHQT, axis=-1)
        context = add("Transpose", add("MatMul", weights_BHQT, value), perm=[0, 2, 1, 3])
        return self.graph.linear(add("Reshape", context, self.rows_2), layer + part.attended)

    def _norm(self, x: str, name: str) -> str:
        weight_D, bias_D = (self.graph.weight(f"{name}.{part}") for part in ("weight", "bias"))
        epsilon = self.family.epsilon(self.config)
        return self.graph.add("LayerNormalization", x, weight_D, bias_D, axis=-1, epsilon=epsilon)

    def _activated(self, x: str, activation: str) -> str:
        add = self.graph.add
        return {
            "gelu": lambda: add("Gelu", x),
            "gelu_new": lambda: add("Gelu", x, approximate="tanh"),
            "relu": lambda: add("Relu", x),
            "silu": lambda: add("Mul", x, add("Sigmoid", x)),
            "tanh": lambda: add("Tanh", x),
        }[activation]()


FORWARD_PASSES: dict[str, type[EncoderGraph]] = {"post-norm": EncoderGraph}
"""Classes by the name in `ModelFamily.forward` (data/family.py)."""
