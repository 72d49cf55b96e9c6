"""Howdah's own request format and that of Text Embeddings Inference: what is asked, and how it is
answered. Pure.

plain: `{"texts": [...]}`, the format of serving/deployment/requests.py.
tei: POST /predict of Text Embeddings Inference, which is also what huggingface_hub's
    InferenceClient sends to a server's address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howdah.serving.compute.generation import Generation
from howdah.serving.deployment.requests import (
    WrongShape,
    as_json,
    check_texts,
    kind_of,
    loaded,
    parse,
    rows_of,
)
from howdah.serving.http.question import Question
from howdah.serving.prediction.rows import Prediction


def plain(body: bytes, most_texts: int) -> Question:
    """POST /v1/classify.

    Raises:
        BadRequest, WrongShape, TooLarge: with what is wrong in it.
    """
    asked = parse(body, most_texts)

    def answer(generation: Generation, predictions: Sequence[Prediction]) -> dict[str, Any]:
        found = as_json(predictions, generation.outputs)
        if asked.is_single:
            return {**generation.identity, "prediction": found[0]}
        return {**generation.identity, "predictions": found}

    return Question(rows=rows_of(asked.texts), key=asked.key, answer=answer)


# ---------------------------------------------------------------- Text Embeddings Inference
_FUNCTIONS = {"single_label": "softmax", "multi_label": "sigmoid", "regression": "none"}
"""What makes a model's scores of its logits, by task; function_to_apply can name no other."""


def tei(body: bytes, most_texts: int) -> Question:
    """POST /predict: inputs is a text, [text], a pair [text, text], or a list of such lists.

    The answer of one input is a list of {label, score}, the best first; of several, a list of them.
    A body with `parameters` comes from Hugging Face's InferenceClient, which reads a list of them
    for one input too. Names that are not read here are ignored, as that server ignores them.

    Raises:
        BadRequest, WrongShape, TooLarge: with what is wrong in it.
    """
    given = loaded(body, '{"inputs": "a text"} or {"inputs": [["a text"], ...]}')
    _check_options(given)
    top_k, function = _parameters(given.get("parameters"))
    has_parameters = given.get("parameters") is not None
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
        expected = _FUNCTIONS[generation.outputs.task]
        if function not in (None, expected):
            raise WrongShape(
                "the model's scores are made by another function",
                where="parameters.function_to_apply", expected=expected, got=function,
            )  # fmt: skip
        labels = generation.outputs.labels
        found = []
        for one in predictions:
            scores = [] if one.scores is None else [round(float(s), 6) for s in one.scores]
            pairs = sorted(zip(labels, scores, strict=True), key=lambda pair: -pair[1])
            found.append([{"label": label, "score": score} for label, score in pairs[:top_k]])
        return found if several or has_parameters else found[0]

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


def _parameters(parameters: Any) -> tuple[int | None, str | None]:
    """(top_k, function_to_apply) of Hugging Face's `parameters`; None: all labels, the model's."""
    if parameters is None:
        return None, None
    if not isinstance(parameters, dict):
        raise WrongShape(
            "parameters is not an object", where="parameters", expected='{"top_k": 1}',
            got=kind_of(parameters),
        )  # fmt: skip
    top_k, function = parameters.get("top_k"), parameters.get("function_to_apply")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
        raise WrongShape(
            "top_k is not a number of labels", where="parameters.top_k", expected="1 or more",
            got=str(top_k)[:20] if isinstance(top_k, int) else kind_of(top_k),
        )  # fmt: skip
    if function is not None and function not in _FUNCTIONS.values():
        raise WrongShape(
            "there is no such function", where="parameters.function_to_apply",
            expected=", ".join(_FUNCTIONS.values()),
            got=function[:20] if isinstance(function, str) else kind_of(function),
        )  # fmt: skip
    return top_k, function
