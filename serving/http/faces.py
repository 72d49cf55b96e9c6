"""Requests and answers in Howdah's format and in that of Text Embeddings Inference. No I/O.

plain: `{"texts": [...]}`, the format of serving/compute/requests.py.
tei: POST /predict of Text Embeddings Inference, which is also what huggingface_hub's
    InferenceClient sends to a server's address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from howdah.serving.compute.generation import Generation
from howdah.serving.compute.refusals import WrongShape
from howdah.serving.compute.requests import (
    as_json,
    check_texts,
    kind_of,
    loaded,
    parameters_of,
    parse,
    rows_of,
)
from howdah.serving.http.question import Question
from howdah.serving.prediction.classify import NO_PAIRS
from howdah.serving.prediction.rows import Prediction


def plain(body: bytes, most_texts: int) -> Question:
    """Parse the body of POST /v1/classify.

    Raises:
        BadRequest, WrongShape, TooLarge: the body is not such a request.
    """
    parsed = parse(body, most_texts)

    def answer(generation: Generation, predictions: Sequence[Prediction]) -> dict[str, Any]:
        answers = as_json(predictions, generation.outputs)
        if parsed.is_single:
            return {**generation.identity, "prediction": answers[0]}
        return {**generation.identity, "predictions": answers}

    return Question(rows=rows_of(parsed.texts), key=parsed.key, answer=answer)


# ---------------------------------------------------------------- Text Embeddings Inference
_FUNCTIONS = {"single_label": "softmax", "multi_label": "sigmoid", "regression": "none"}
"""Function from a model's logits to its scores, by task; function_to_apply must name it."""


def tei(body: bytes, most_texts: int) -> Question:
    """Parse POST /predict: inputs is a text, [text], a pair [text, text], or a list of such lists.

    The answer to one input is a list of {label, score}, the best first; to several, a list of such
    lists. A body with `parameters` comes from Hugging Face's InferenceClient, which expects a list
    of lists for one input, too. Other names are ignored, as that server ignores them.

    Raises:
        BadRequest, WrongShape, TooLarge: the body is not such a request.
    """
    request = loaded(body, '{"inputs": "a text"} or {"inputs": [["a text"], ...]}')
    _check_options(request)
    top_k, function = _parameters(request)
    has_parameters = request.get("parameters") is not None
    inputs = request.get("inputs")
    if isinstance(inputs, str):
        texts, several = [inputs], False
    elif isinstance(inputs, list) and inputs and isinstance(inputs[0], list):
        texts, several = inputs, True
    elif isinstance(inputs, list) and len(inputs) in (1, 2):
        texts, several = [inputs], False
    else:
        raise WrongShape(
            "inputs is neither a text nor a list of inputs",
            where="inputs",
            expected='"a text", ["first", "second"] of a pair, or [["a text"], ["another"], ...]',
            got=f"a list of {len(inputs)}" if isinstance(inputs, list) else kind_of(inputs),
        )
    flat = [one[0] if isinstance(one, list) and len(one) == 1 else one for one in texts]
    check_texts(flat, "inputs", most_texts, is_single=not several)

    def answer(generation: Generation, predictions: Sequence[Prediction]) -> list[Any]:
        wrong = [n for n, one in enumerate(predictions) if one.scores is None]
        if wrong:
            is_pair = predictions[wrong[0]].error == NO_PAIRS
            raise WrongShape(
                str(predictions[wrong[0]].error),
                where=f"inputs[{wrong[0]}]" if several else "inputs",
                expected='[["a text"], ["another"], ...]: a list of two texts is a pair'
                if is_pair
                else "a text with words",
                remedy=None if is_pair else "/v1/classify answers the other texts of a request",
            )
        expected = _FUNCTIONS[generation.outputs.task]
        if function not in (None, expected):
            raise WrongShape(
                "the model computes its scores with another function",
                where="parameters.function_to_apply",
                expected=expected,
                got=function,
            )
        labels = generation.outputs.labels
        answers = []
        for one in predictions:
            scores = [] if one.scores is None else [round(float(s), 6) for s in one.scores]
            pairs = sorted(zip(labels, scores, strict=True), key=lambda pair: -pair[1])
            answers.append([{"label": label, "score": score} for label, score in pairs[:top_k]])
        return answers if several or has_parameters else answers[0]

    return Question(rows=rows_of(flat), answer=answer)


def _check_options(request: Mapping[str, Any]) -> None:
    for name in ("raw_scores", "truncate"):
        if not isinstance(request.get(name, False), bool | None):
            raise WrongShape(
                f"{name} is not a boolean",
                where=name,
                expected="true or false",
                got=kind_of(request[name]),
            )
    if request.get("raw_scores"):
        raise WrongShape(
            "there are no raw scores, only probabilities", where="raw_scores", expected="false"
        )
    side = request.get("truncation_direction") or "Right"
    if side not in ("Right", "right"):
        raise WrongShape(
            "texts are cut at their end, as in training",
            where="truncation_direction",
            expected="Right",
        )


def _parameters(request: Mapping[str, Any]) -> tuple[int | None, str | None]:
    """Return (top_k, function_to_apply) of Hugging Face's `parameters`; None if they are absent."""
    parameters = parameters_of(request, "parameters")
    top_k, function = parameters.get("top_k"), parameters.get("function_to_apply")
    if top_k is not None and (isinstance(top_k, bool) or not isinstance(top_k, int) or top_k < 1):
        raise WrongShape(
            "top_k is not a number of labels",
            where="parameters.top_k",
            expected="1 or more",
            got=str(top_k)[:20] if isinstance(top_k, int) else kind_of(top_k),
        )
    if function is not None and function not in _FUNCTIONS.values():
        raise WrongShape(
            "there is no such function",
            where="parameters.function_to_apply",
            expected=", ".join(_FUNCTIONS.values()),
            got=function[:20] if isinstance(function, str) else kind_of(function),
        )
    return top_k, function
