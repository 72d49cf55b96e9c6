"""The JSON of a classification request and of its answer: POST /v1/classify.

    {"texts": ["stocks fell", ...], "key": "user-17"}     or {"text": "stocks fell"}
    {"model": ..., "version": 3, "run_id": ..., "predictions": [{"label", "score", "scores"}, ...]}

A multi-label model answers {"labels", "scores"}, a regression {"value"}. A model of pairs takes a
list of two texts in the place of a text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from howdah.data.clean import joined
from howdah.serving.compute.refusals import BadRequest, TooLarge, WrongShape, shortened
from howdah.serving.prediction.rows import Outputs, Prediction, Row
from howdah.storage.charsets import SURROGATES

_LONGEST_KEY = 1024
_KEYS = ("text", "texts", "key")
_MOST_ELEMENTS, _TOO_DEEP = 20_000, 1000
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A JSON string; an unterminated one matches to the end, so that the text is searched once."""


@dataclass(frozen=True)
class ParsedRequest:
    """A checked request."""

    texts: tuple[str | list[str], ...]
    """The texts; a list of two is a pair."""
    key: str | None
    """Requests with the same key are answered by the same of two models."""
    is_single: bool
    """True if the body has `text`: the answer has `prediction`."""


def parse(body: bytes, most_texts: int) -> ParsedRequest:
    """Check a request's body.

    Raises:
        BadRequest, WrongShape, TooLarge: the body is not a request.
    """
    fields = loaded(body, '{"texts": ["a text", ...]}')
    unknown = [name for name in fields if name not in _KEYS]
    if unknown:
        raise WrongShape(
            "unknown name in the body",
            where=shortened(unknown[0]),
            expected=", ".join(_KEYS),
            got=", ".join(repr(shortened(name)) for name in unknown[:5]),
        )
    if ("text" in fields) == ("texts" in fields):
        raise WrongShape(
            "the body must have text or texts",
            where="text, texts",
            expected='{"text": "one text"} or {"texts": ["a text", ...]}',
            got="both" if "text" in fields else "neither",
        )
    is_single = "text" in fields
    texts = [fields["text"]] if is_single else fields["texts"]
    check_texts(texts, "text" if is_single else "texts", most_texts, is_single=is_single)
    return ParsedRequest(tuple(texts), _key(fields.get("key")), is_single)


def loaded(body: bytes, expected: str) -> dict[str, Any]:
    """Parse a body as a JSON object.

    Raises:
        BadRequest: it is not JSON.
        TooLarge: it has too many elements.
        WrongShape: it is not an object.
    """
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
        _require_few_elements(text)
        parsed = json.loads(text)
    except ValueError as error:  # UnicodeDecodeError included
        raise BadRequest(
            "the body is not JSON",
            expected=f"{expected}, in UTF-8",
            got=str(error) if body else "nothing",
        ) from None
    except RecursionError:
        raise BadRequest(
            "the body is nested too deeply", expected=expected, got="lists or objects in each other"
        ) from None
    if not isinstance(parsed, dict):
        raise WrongShape("the body is not an object", expected=expected, got=kind_of(parsed))
    return parsed


def _require_few_elements(text: str) -> None:
    """Refuse JSON of many elements before it is parsed: 2 MiB of `[]` take a second and 100 MB.

    Raises:
        TooLarge: it has more than _MOST_ELEMENTS.
        RecursionError: most of them are nested lists.
    """

    def counted(within: str) -> int:
        return sum(map(within.count, "[{,:"))

    if counted(text) <= _MOST_ELEMENTS:
        return
    bare = _STRING.sub("", text)  # texts have commas as well
    if "[" * _TOO_DEEP in bare:
        raise RecursionError
    if counted(bare) > _MOST_ELEMENTS:
        raise TooLarge(
            "the body has too many elements",
            expected=f"at most {_MOST_ELEMENTS:,} commas, colons and brackets outside of texts",
            remedy="send fewer texts at a time; `howdah predict` classifies files",
        )


def parameters_of(value: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the object `parameters` in a body or a part of it; {} if it is absent or null.

    Raises:
        WrongShape: it is not an object.
    """
    parameters = value.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise WrongShape(
            "parameters is not an object",
            where=where,
            expected="an object",
            got=kind_of(parameters),
        )
    return parameters


def check_texts(texts: Any, where: str, most: int, *, is_single: bool = False) -> None:
    """Require a list of 1 to `most` texts, or pairs of texts.

    Args:
        where: the field's name.
        is_single: the field is one text, of which the caller has made a list.
    Raises:
        WrongShape, TooLarge: `where` names the first wrong text.
    """
    if not isinstance(texts, list) or not texts:
        raise WrongShape(
            f"{where} is not a list of texts",
            where=where,
            expected="at least one text",
            got="an empty list" if texts == [] else kind_of(texts),
        )
    if len(texts) > most:
        raise TooLarge(
            "there are too many texts",
            where=where,
            expected=f"at most {most}",
            got=str(len(texts)),
            remedy="send several requests; `howdah predict` classifies files",
        )
    for number, text in enumerate(texts):
        field = where if is_single else f"{where}[{number}]"
        sides = text if isinstance(text, list) and len(text) == 2 else [text]
        for side in sides:
            if not isinstance(side, str):
                raise WrongShape(
                    "a text is not a string",
                    where=field,
                    expected="a string, or a list of two for a model of pairs",
                    got=kind_of(side),
                )
            lone = SURROGATES.search(side)
            if lone:
                raise WrongShape(
                    "a text is not Unicode",
                    where=field,
                    expected="no lone surrogates",
                    got=f"{lone[0]!a} at character {lone.start()}",
                )


def _key(key: Any) -> str | None:
    if key is None:
        return None
    if not isinstance(key, str) or not key or len(key) > _LONGEST_KEY:
        raise WrongShape(
            "key is not a string of 1 to 1,024 characters",
            where="key",
            expected="a string that stays the same for a user or session",
            got=kind_of(key) if not isinstance(key, str) else f"{len(key)} characters",
        )
    return key


def rows_of(texts: Sequence[str | list[str]]) -> list[Row]:
    """Turn a request's texts into rows to classify."""
    return [
        Row(str(number), text)
        if isinstance(text, str)
        else Row(str(number), joined(*text), pair=True)
        for number, text in enumerate(texts)
    ]


def as_json(predictions: Sequence[Prediction], outputs: Outputs) -> list[dict[str, Any]]:
    """Return the predictions as plain JSON, in their order."""
    single, answers = outputs.task == "single_label", []
    for one in predictions:
        answer: dict[str, Any] = {outputs.name: one.label}
        if one.scores is None:
            answers.append(answer | ({"score": None} if single else {}) | {"error": one.error})
            continue
        scores = [round(float(score), 6) for score in one.scores]
        named = dict(zip(outputs.labels, scores, strict=True))
        if single:
            # A rejected row has its highest score, which was too low.
            answer["score"] = max(scores) if one.label is None else named[one.label]
            if one.rejected:
                answer["rejected"] = True
        if outputs.has_scores:
            answer["scores"] = named
        answers.append(answer)
    return answers


def kind_of(value: Any) -> str:
    """Name the type of a JSON value, for messages."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return names.get(type(value), "null" if value is None else "a number")
