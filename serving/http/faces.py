"""The three request formats of the server: what is asked, and how it is answered. Pure.

plain: `{"texts": [...]}`, as `howdah serve --on ray` has it.
tei: POST /predict of Text Embeddings Inference.
oip: the Open Inference Protocol, version 2 (KServe, Triton), with JSON data.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serving.compute.generation import Generation
from training.deployment.requests import (
    TooLarge,
    WrongShape,
    as_json,
    check_known,
    check_texts,
    kind_of,
    loaded,
    parse,
    rows_of,
)
from training.prediction.rows import Prediction, Row

__all__ = ["OIP_EXPECTED", "PLATFORMS", "Question", "metadata", "oip", "plain", "tei"]

Answer = Callable[[Generation, Sequence[Prediction]], Any]

OIP_EXPECTED = '{"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["..."]}]}'
PLATFORMS = {
    "onnx": "onnxruntime_onnx", "torch": "pytorch_libtorch", "tensorflow": "tensorflow_savedmodel",
}  # fmt: skip
"""What OIP calls the framework."""
_MOST_ID = 1024


@dataclass(frozen=True, kw_only=True)
class Question:
    """A checked request."""

    rows: list[Row]
    answer: Answer
    """The body of the answer."""


def plain(body: bytes, most_texts: int, most_bytes: int) -> Question:
    """POST /v1/classify.

    Raises:
        BadRequest, WrongShape, TooLarge: with what is wrong in it.
    """
    asked = parse(body, most_texts=most_texts, most_bytes=most_bytes)

    def answer(generation: Generation, predictions: Sequence[Prediction]) -> dict[str, Any]:
        found = as_json(predictions, generation.outputs)
        if asked.is_single:
            return {**generation.identity, "prediction": found[0]}
        return {**generation.identity, "predictions": found}

    return Question(rows=rows_of(asked.texts), answer=answer)


# ---------------------------------------------------------------- Text Embeddings Inference
_TEI = ("inputs", "raw_scores", "truncate", "truncation_direction")


def tei(body: bytes, most_texts: int, most_bytes: int) -> Question:
    """POST /predict: inputs is a text, [text], a pair [text, text], or a list of such lists.

    The answer of one input is a list of {label, score}, the best first; of several, a list of them.

    Raises:
        BadRequest, WrongShape, TooLarge: with what is wrong in it.
    """
    given = loaded(body, '{"inputs": "a text"} or {"inputs": [["a text"], ...]}')
    check_known(given, _TEI)
    _check_options(given)
    inputs = given.get("inputs")
    if isinstance(inputs, str):
        texts, several = [inputs], False
    elif isinstance(inputs, list) and inputs and isinstance(inputs[0], list):
        texts, several = inputs, True
    elif isinstance(inputs, list) and len(inputs) in (1, 2):
        texts, several = [inputs], False
    else:
        raise WrongShape(
            "inputs is no text and no list of inputs",
            where="inputs",
            expected='"a text", ["first", "second"] of a pair, or [["a text"], ["another"], ...]',
            got=f"a list of {len(inputs)}" if isinstance(inputs, list) else kind_of(inputs),
        )
    flat = [one[0] if isinstance(one, list) and len(one) == 1 else one for one in texts]
    check_texts(flat, "inputs", most_texts, is_single=not several)

    def answer(generation: Generation, predictions: Sequence[Prediction]) -> list[Any]:
        wrong = [n for n, one in enumerate(predictions) if one.scores is None]
        if wrong:
            raise WrongShape(
                str(predictions[wrong[0]].error),
                where=f"inputs[{wrong[0]}]" if several else "inputs",
                expected="a text with words, as the model reads them",
                remedy="/v1/classify answers the other texts of a request",
            )
        labels = generation.outputs.labels
        found = []
        for one in predictions:
            scores = [] if one.scores is None else [round(float(s), 6) for s in one.scores]
            pairs = sorted(zip(labels, scores, strict=True), key=lambda pair: -pair[1])
            found.append([{"label": label, "score": score} for label, score in pairs])
        return found if several else found[0]

    return Question(rows=rows_of(flat), answer=answer)


def _check_options(given: Mapping[str, Any]) -> None:
    for name in ("raw_scores", "truncate"):
        if not isinstance(given.get(name, False), bool | None):
            raise WrongShape(
                f"{name} is no boolean", where=name, expected="true or false",
                got=kind_of(given[name]),
            )  # fmt: skip
    if given.get("raw_scores"):
        raise WrongShape(
            "raw scores are not given", where="raw_scores", expected="false", got="true",
            remedy="scores are probabilities",
        )  # fmt: skip
    side = given.get("truncation_direction") or "Right"
    if side not in ("Right", "right"):
        raise WrongShape(
            "texts are cut at their end, as in training", where="truncation_direction",
            expected="Right", got=kind_of(side) if not isinstance(side, str) else side[:20],
        )  # fmt: skip


# ------------------------------------------------------------------- Open Inference Protocol
_REQUEST = ("id", "parameters", "inputs", "outputs")
_INPUT = ("name", "shape", "datatype", "parameters", "data")


def oip(body: bytes, most_texts: int, most_bytes: int, pairs: bool) -> Question:
    """POST /v2/models/NAME/infer.

    A text without a prediction has the label "" and scores of 0, and its reason in the output
    `error`.

    Args:
        pairs: the model's texts are pairs: the shape is [N, 2].
    Raises:
        BadRequest, WrongShape, TooLarge: with what is wrong in it.
    """
    given = loaded(body, OIP_EXPECTED)
    check_known(given, _REQUEST)
    request_id = given.get("id")
    if request_id is not None and not (isinstance(request_id, str) and len(request_id) <= _MOST_ID):
        raise WrongShape(
            "id is not a string", where="id", expected=f"at most {_MOST_ID} characters",
            got=kind_of(request_id),
        )  # fmt: skip
    texts = _texts(given.get("inputs"), most_texts, pairs)
    wanted = _outputs(given.get("outputs"))

    def answer(generation: Generation, predictions: Sequence[Prediction]) -> dict[str, Any]:
        outputs = _tensors(generation, predictions)
        names = [name for name in (wanted or outputs) if name in outputs]
        if wanted and len(names) < len(wanted):
            raise WrongShape(
                "there is no such output", where="outputs", expected=", ".join(outputs),
                got=", ".join(name[:40] for name in wanted if name not in outputs),
            )  # fmt: skip
        out: dict[str, Any] = {"model_name": generation.name}
        if generation.version is not None:
            out["model_version"] = str(generation.version)
        if request_id is not None:
            out["id"] = request_id
        out["parameters"] = {"run_id": generation.model.run_id}
        return out | {"outputs": [{"name": name, **outputs[name]} for name in names]}

    return Question(rows=rows_of(texts), answer=answer)


def _texts(inputs: Any, most: int, pairs: bool) -> list[Any]:
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise WrongShape(
            "inputs is not a list of one tensor",
            where="inputs",
            expected=OIP_EXPECTED,
            got=f"a list of {len(inputs)}" if isinstance(inputs, list) else kind_of(inputs),
        )
    [tensor] = inputs
    check_known(tensor, _INPUT, where="inputs[0]")
    for name, expected in (("name", "text"), ("datatype", "BYTES")):
        if tensor.get(name) != expected:
            got = tensor.get(name)
            raise WrongShape(
                f"the tensor's {name} is another one", where=f"inputs[0].{name}",
                expected=expected, got=got[:40] if isinstance(got, str) else kind_of(got),
            )  # fmt: skip
    if (tensor.get("parameters") or {}) != {}:
        parameters = tensor["parameters"]
        if not isinstance(parameters, dict) or "binary_data_size" in parameters:
            raise WrongShape(
                "binary tensors are not read", where="inputs[0].parameters",
                expected="JSON data", got="binary_data_size",
                remedy="tritonclient: set_data_from_numpy(..., binary_data=False)",
            )  # fmt: skip
    shape, data = tensor.get("shape"), tensor.get("data")
    if not isinstance(data, list):
        raise WrongShape(
            "the tensor has no data", where="inputs[0].data", expected="a list of texts",
            got=kind_of(data),
        )  # fmt: skip
    flat = [one for part in data for one in (part if isinstance(part, list) else [part])]
    count = _count(shape, pairs)
    each = 2 if pairs else 1
    if count > most:
        raise TooLarge(
            "there are too many texts", where="inputs[0].shape", expected=f"at most {most}",
            got=str(count), remedy="send several requests; `howdah predict` classifies files",
        )  # fmt: skip
    if len(flat) != count * each:
        raise WrongShape(
            "the tensor's data are not as many as its shape says", where="inputs[0].data",
            expected=str(count * each), got=str(len(flat)),
        )  # fmt: skip
    texts = [flat[n : n + 2] for n in range(0, len(flat), 2)] if pairs else flat
    check_texts(texts, "inputs[0].data", most)
    return texts


def _count(shape: Any, pairs: bool) -> int:
    """Texts, or pairs, by the tensor's shape: [N] or [N, 1], of pairs [N, 2]."""
    right = (
        isinstance(shape, list)
        and all(isinstance(n, int) and not isinstance(n, bool) for n in shape)
        and (len(shape) == 2 if pairs else len(shape) in (1, 2))
        and shape[0] > 0
        and (len(shape) == 1 or shape[1] == (2 if pairs else 1))
    )
    if not right:
        raise WrongShape(
            "the tensor has another shape", where="inputs[0].shape",
            expected="[N, 2], of pairs" if pairs else "[N] or [N, 1]",
            got=json.dumps(shape)[:60] if isinstance(shape, list) else kind_of(shape),
        )  # fmt: skip
    return int(shape[0])


def _outputs(outputs: Any) -> list[str]:
    """Names of the outputs that are asked for; []: all."""
    if outputs is None or outputs == []:
        return []
    if not isinstance(outputs, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in outputs
    ):
        raise WrongShape(
            "outputs is not a list of names", where="outputs", expected='[{"name": "label"}]',
            got=kind_of(outputs),
        )  # fmt: skip
    for one in outputs:
        parameters = one.get("parameters") or {}
        if not isinstance(parameters, dict) or parameters.get("binary_data"):
            raise WrongShape(
                "binary tensors are not written", where="outputs", expected="JSON data",
                got="binary_data",
                remedy="tritonclient: InferRequestedOutput(name, binary_data=False)",
            )  # fmt: skip
    return [one["name"] for one in outputs]


def _tensors(generation: Generation, predictions: Sequence[Prediction]) -> dict[str, dict]:
    count, outputs = len(predictions), generation.outputs
    found: dict[str, dict] = {}
    if outputs.task != "regression":
        found["label"] = {
            "datatype": "BYTES", "shape": [count],
            "data": [_label(one.label) for one in predictions],
        }  # fmt: skip
    columns = len(outputs.labels)
    scores = [
        [0.0] * columns if one.scores is None else [round(float(s), 6) for s in one.scores]
        for one in predictions
    ]
    found["scores" if outputs.has_scores else "value"] = {
        "datatype": "FP32",
        "shape": [count, columns] if outputs.has_scores else [count],
        "data": [score for row in scores for score in row],
    }
    found["error"] = {
        "datatype": "BYTES", "shape": [count], "data": [one.error or "" for one in predictions],
    }  # fmt: skip
    return found


def _label(label: Any) -> str:
    if label is None:
        return ""
    return label if isinstance(label, str) else json.dumps(label, ensure_ascii=False)


def metadata(generation: Generation) -> dict[str, Any]:
    """GET /v2/models/NAME."""
    outputs, pairs = generation.outputs, generation.model.pairs
    tensors = _tensors(generation, [])
    for name, tensor in tensors.items():
        tensor.pop("data")
        tensor["shape"] = [-1, len(outputs.labels)] if name == "scores" else [-1]
    version = [] if generation.version is None else [str(generation.version)]
    return {
        "name": generation.name,
        "versions": version,
        "platform": PLATFORMS[generation.model.framework],
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [-1, 2] if pairs else [-1]}],
        "outputs": [{"name": name, **tensor} for name, tensor in tensors.items()],
        "parameters": {
            "run_id": generation.model.run_id, "task": outputs.task,
            "labels": list(outputs.labels), "max_length": generation.model.max_length,
        },
    }  # fmt: skip
