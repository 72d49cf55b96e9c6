"""Requests and answers of the Open Inference Protocol, version 2 (KServe, Triton). No I/O.

A tensor's data are JSON, or bytes after the JSON (the protocol's binary tensor extension, which
tritonclient uses by default). The header Inference-Header-Content-Length says where the JSON ends.
A BYTES tensor has four bytes of length, little-endian, before each text in UTF-8. Other names are
ignored, since KServe's client puts `model_name` into each body.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from howdah.serving.compute.generation import Generation
from howdah.serving.compute.refusals import TooLarge, WrongShape
from howdah.serving.compute.requests import check_texts, kind_of, loaded, parameters_of, rows_of
from howdah.serving.http.question import Question
from howdah.serving.prediction.rows import Prediction

EXTENSIONS = ["binary_tensor_data", "classification"]
HEADER = "Inference-Header-Content-Length"
EXPECTED = '{"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["..."]}]}'
PLATFORMS = {
    "onnx": "onnxruntime_onnx", "torch": "pytorch_libtorch", "tensorflow": "tensorflow_savedmodel",
}  # fmt: skip
"""OIP's names of the frameworks."""
_MOST_ID = 1024
_MOST_OUTPUTS = 16
_LENGTH = struct.Struct("<I")


@dataclass(frozen=True)
class _Output:
    """A requested output."""

    name: str
    is_binary: bool
    classes: int
    """Number of best classes to answer, as texts "score:number:label"; 0: all scores."""


@dataclass(frozen=True)
class Tensors:
    """An answer: its JSON, and the binary tensors after it."""

    head: dict[str, Any]
    binary: list[bytes]

    def body(self) -> tuple[bytes, dict[str, str]]:
        """Return (body, headers that a reader needs)."""
        head = json.dumps(self.head, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        data = head.encode("utf-8", "replace")
        if not self.binary:
            return data, {"Content-Type": "application/json"}
        headers = {"Content-Type": "application/octet-stream", HEADER: str(len(data))}
        return data + b"".join(self.binary), headers


def infer(
    body: bytes, most_texts: int, *, pairs: bool, json_bytes: bytes | None = None
) -> Question:
    """Parse POST /v2/models/NAME/infer.

    A text without a prediction has the label "" and scores of 0; the output `error` has the reason.

    Args:
        pairs: the model classifies pairs of texts, so that the shape is [N, 2].
        json_bytes: the request's header Inference-Header-Content-Length; None: all is JSON.
    Raises:
        BadRequest, WrongShape, TooLarge: the body is not such a request.
    """
    end = _json_end(json_bytes, len(body))
    request = loaded(body[:end], EXPECTED)
    request_id = request.get("id")
    if request_id is not None and not (isinstance(request_id, str) and len(request_id) <= _MOST_ID):
        raise WrongShape(
            "id is not a string",
            where="id",
            expected=f"at most {_MOST_ID} characters",
            got=kind_of(request_id),
        )
    parameters = parameters_of(request, "parameters")
    texts = _texts(request.get("inputs"), body[end:], most_texts, pairs)
    all_binary = parameters.get("binary_data_output") is True
    outputs = _outputs(request.get("outputs"), all_binary)

    def answer(generation: Generation, predictions: Sequence[Prediction]) -> Tensors:
        tensors = _tensors(generation, predictions)
        requested = outputs or [_Output(name, all_binary, 0) for name in tensors]
        missing = [one.name for one in requested if one.name not in tensors]
        if missing:
            raise WrongShape(
                "there is no such output",
                where="outputs",
                expected=", ".join(tensors),
                got=", ".join(name[:40] for name in missing[:5]),
            )
        head: dict[str, Any] = {"model_name": generation.name}
        if generation.version.number is not None:
            head["model_version"] = str(generation.version.number)
        if request_id is not None:
            head["id"] = request_id
        head["parameters"] = {"run_id": generation.model.run_id}
        head["outputs"], binary = [], []
        for one in requested:
            tensor = tensors[one.name]
            if one.classes:
                tensor = _classes(one, tensor, generation)
            if one.is_binary:
                data = _binary(tensor)
                binary.append(data)
                tensor = {name: tensor[name] for name in ("datatype", "shape")}
                tensor["parameters"] = {"binary_data_size": len(data)}
            head["outputs"].append({"name": one.name, **tensor})
        return Tensors(head, binary)

    return Question(rows=rows_of(texts), answer=answer)


# ------------------------------------------------------------------------------------ requests
def _json_end(value: bytes | None, length: int) -> int:
    """Return the offset at which the JSON of a body ends."""
    if value is None:
        return length
    if not (value.isdigit() and len(value) < 12 and int(value) <= length):
        raise WrongShape(
            "not an offset at which the JSON ends",
            where=HEADER,
            expected=f"a number of bytes, at most the body's {length}",
            got=value[:20].decode("latin-1"),
        )
    return int(value)


def _texts(inputs: Any, behind: bytes, most: int, pairs: bool) -> list[Any]:
    """Read the texts, or pairs of texts, of the request's only tensor.

    Args:
        behind: the bytes after the JSON.
    """
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise WrongShape(
            "inputs is not a list of one tensor",
            where="inputs",
            expected=EXPECTED,
            got=f"a list of {len(inputs)}" if isinstance(inputs, list) else kind_of(inputs),
        )
    [tensor] = inputs
    for name, expected in (("name", "text"), ("datatype", "BYTES")):
        if tensor.get(name) != expected:
            got = tensor.get(name)
            raise WrongShape(
                f"the tensor has another {name}",
                where=f"inputs[0].{name}",
                expected=expected,
                got=got[:40] if isinstance(got, str) else kind_of(got),
            )
    each = 2 if pairs else 1
    count = _count(tensor.get("shape"), pairs)
    if count > most:
        raise TooLarge(
            "there are too many texts",
            where="inputs[0].shape",
            expected=f"at most {most}",
            got=str(count),
            remedy="send several requests; `howdah predict` classifies files",
        )
    size = parameters_of(tensor, "inputs[0].parameters").get("binary_data_size")
    if size is None and not behind:
        where, flat = "inputs[0].data", _json_data(tensor.get("data"))
    else:
        where, flat = "inputs[0]", _binary_data(size, behind, count * each)
    if len(flat) != count * each:
        raise WrongShape(
            "the tensor's number of values does not match its shape",
            where=where,
            expected=str(count * each),
            got=str(len(flat)),
        )
    texts = [flat[n : n + 2] for n in range(0, len(flat), 2)] if pairs else flat
    check_texts(texts, where, most)
    return texts


def _json_data(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise WrongShape(
            "the tensor has no data",
            where="inputs[0].data",
            expected="a list of texts",
            got=kind_of(data),
        )
    return [one for part in data for one in (part if isinstance(part, list) else [part])]


def _binary_data(size: Any, behind: bytes, most: int) -> list[str]:
    """Read the texts of a binary BYTES tensor; at most one more than `most`."""
    if isinstance(size, bool) or size != len(behind):
        raise WrongShape(
            "the tensor's size does not match the bytes after the JSON",
            where="inputs[0].parameters.binary_data_size",
            expected=f"{len(behind)}, with the header {HEADER}",
            got=str(size)[:20] if isinstance(size, int) else kind_of(size),
            remedy="tritonclient: set_data_from_numpy(...) writes both",
        )
    texts: list[str] = []
    at = 0
    while at < len(behind) and len(texts) <= most:
        begin = at + _LENGTH.size
        length = _LENGTH.unpack_from(behind, at)[0] if begin <= len(behind) else 0
        at = begin + length
        if at > len(behind):
            raise WrongShape(
                "a binary text is cut off",
                where=f"inputs[0], text {len(texts)}",
                expected="four bytes of length, little-endian, and that many bytes",
            )
        try:
            texts.append(behind[begin:at].decode("utf-8"))
        except UnicodeDecodeError as error:
            raise WrongShape(
                "a binary text is not UTF-8",
                where=f"inputs[0], text {len(texts)}",
                expected="UTF-8",
                got=f"byte {error.object[error.start]:#04x} at {error.start}",
            ) from None
    return texts


def _count(shape: Any, pairs: bool) -> int:
    """Return the number of texts or pairs, from the tensor's shape: [N], [N, 1] or pairs [N, 2]."""
    right = (
        isinstance(shape, list)
        and all(isinstance(n, int) and not isinstance(n, bool) for n in shape)
        and (len(shape) == 2 if pairs else len(shape) in (1, 2))
        and shape[0] > 0
        and (len(shape) == 1 or shape[1] == (2 if pairs else 1))
    )
    if not right:
        raise WrongShape(
            "the tensor has another shape",
            where="inputs[0].shape",
            expected="[N, 2] for pairs" if pairs else "[N] or [N, 1]",
            got=json.dumps(shape)[:60] if isinstance(shape, list) else kind_of(shape),
        )
    return int(shape[0])


def _outputs(outputs: Any, all_binary: bool) -> list[_Output]:
    """Read the requested outputs; []: all."""
    if outputs is None or outputs == []:
        return []
    if not isinstance(outputs, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in outputs
    ):
        raise WrongShape(
            "outputs is not a list of names",
            where="outputs",
            expected='[{"name": "label"}]',
            got=json.dumps(outputs)[:40],
        )
    if len(outputs) > _MOST_OUTPUTS:
        raise WrongShape(
            "outputs has too many names",
            where="outputs",
            expected=f"at most {_MOST_OUTPUTS}",
            got=str(len(outputs)),
        )
    result = []
    for number, one in enumerate(outputs):
        parameters = parameters_of(one, f"outputs[{number}].parameters")
        classes = parameters.get("classification", 0)
        if isinstance(classes, bool) or not isinstance(classes, int) or classes < 0:
            raise WrongShape(
                "classification is not a number of classes",
                where=f"outputs[{number}].parameters",
                expected="0 or more",
                got=json.dumps(classes)[:40],
            )
        is_binary = parameters.get("binary_data", all_binary) is True
        result.append(_Output(one["name"], is_binary, classes))
    return result


# ------------------------------------------------------------------------------------- answers
def _tensors(generation: Generation, predictions: Sequence[Prediction]) -> dict[str, dict]:
    count, outputs = len(predictions), generation.outputs
    tensors: dict[str, dict] = {}
    if outputs.task != "regression":
        tensors["label"] = {
            "datatype": "BYTES", "shape": [count],
            "data": [_label(one.label) for one in predictions],
        }  # fmt: skip
    columns = len(outputs.labels)
    scores = [
        [0.0] * columns if one.scores is None else [round(float(s), 6) for s in one.scores]
        for one in predictions
    ]
    tensors["scores" if outputs.has_scores else "value"] = {
        "datatype": "FP32",
        "shape": [count, columns] if outputs.has_scores else [count],
        "data": [score for row in scores for score in row],
    }
    tensors["error"] = {
        "datatype": "BYTES", "shape": [count], "data": [one.error or "" for one in predictions],
    }  # fmt: skip
    return tensors


def _classes(output: _Output, tensor: dict[str, Any], generation: Generation) -> dict[str, Any]:
    """Turn the tensor `scores` into texts of its best classes (Triton's classification)."""
    if output.name != "scores":
        raise WrongShape(
            "this output has no classes",
            where="outputs",
            expected="classification of scores",
            got=output.name[:40],
        )
    rows, columns = tensor["shape"]
    most = min(output.classes, columns)
    labels, data = generation.outputs.labels, []
    for row in range(rows):
        scores = tensor["data"][row * columns : (row + 1) * columns]
        best = sorted(range(columns), key=lambda number: (-scores[number], number))[:most]
        data += [f"{scores[number]:.6f}:{number}:{labels[number]}" for number in best]
    return {"datatype": "BYTES", "shape": [rows, most], "data": data}


def _binary(tensor: dict[str, Any]) -> bytes:
    if tensor["datatype"] == "FP32":
        return np.asarray(tensor["data"], "<f4").tobytes()
    texts = [text.encode("utf-8", "replace") for text in tensor["data"]]
    return b"".join(_LENGTH.pack(len(text)) + text for text in texts)


def _label(label: Any) -> str:
    if label is None:
        return ""
    return label if isinstance(label, str) else json.dumps(label, ensure_ascii=False)


def metadata(generations: Sequence[Generation]) -> dict[str, Any]:
    """Return the answer to GET /v2/models/NAME.

    Args:
        generations: the loaded versions, which have the same inputs and outputs.
    """
    generation = generations[0]
    outputs, pairs = generation.outputs, generation.model.pairs
    tensors = _tensors(generation, [])
    for name, tensor in tensors.items():
        tensor.pop("data")
        tensor["shape"] = [-1, len(outputs.labels)] if name == "scores" else [-1]
    numbers = [one.version.number for one in generations]
    return {
        "name": generation.name,
        "versions": [str(number) for number in numbers if number is not None],
        "platform": PLATFORMS[generation.model.framework],
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1, 2] if pairs else [-1]}],
        "outputs": [{"name": name, **tensor} for name, tensor in tensors.items()],
        "parameters": {
            "run_id": generation.model.run_id, "task": outputs.task,
            "labels": list(outputs.labels), "max_length": generation.model.max_length,
        },
    }  # fmt: skip
