"""What a classification request and its answer look like as JSON, whichever server carries them.

    {"texts": ["stocks fell", ...], "key": "user-17"}     or {"text": "stocks fell"}
    {"model": ..., "version": 3, "run_id": ..., "predictions": [{"label", "score", "scores"}, ...]}

A model of several labels answers {"labels", "scores"}, one of numbers {"value"}. A model of pairs
takes a list of two texts in the place of a text.

A refusal is the JSON of a HowdahError: error, what, where, expected, got, remedy.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from howdah.data.clean import joined
from howdah.errors import HowdahError
from training.prediction.rows import Outputs, Prediction, Row

__all__ = [
    "MOST_BYTES", "MOST_TEXTS", "Asked", "BadRequest", "Overloaded", "Refusal", "TooLarge",
    "UnknownRoute", "WrongHost", "WrongMethod", "as_json", "parse", "rows_of",
]  # fmt: skip

MOST_TEXTS = 256
"""In one request; more belong to `howdah predict`."""
MOST_BYTES = 4 * 2**20
_LONGEST_KEY = 1024
_KEYS = ("text", "texts", "key")


class Refusal(HowdahError):
    """A request that is not answered with predictions."""

    status = 500


class BadRequest(Refusal):
    """The request is not what is expected."""

    status = 400


class WrongHost(Refusal):
    """The Host header names another server."""

    status = 403


class UnknownRoute(Refusal):
    """No such path."""

    status = 404


class WrongMethod(Refusal):
    """The path takes another method."""

    status = 405


class TooLarge(Refusal):
    """The body is longer than MOST_BYTES."""

    status = 413


class Overloaded(Refusal):
    """The queue is full, or the replica was lost: the same request may succeed later."""

    status = 503


@dataclass(frozen=True)
class Asked:
    """A checked request."""

    texts: tuple[str | list[str], ...]
    """A list of two: a pair."""
    key: str | None
    """Requests with one key are answered by one of two versions."""
    is_single: bool
    """It had `text`: the answer has `prediction`."""


def parse(body: bytes) -> Asked:
    """Check a request's body.

    Raises:
        BadRequest, TooLarge: with what is wrong in it.
    """
    if len(body) > MOST_BYTES:
        raise TooLarge(
            "the body is too large",
            expected=f"at most {MOST_BYTES:,} bytes",
            got=f"{len(body):,} bytes",
            remedy="send fewer texts at a time; `howdah predict` classifies files",
        )
    try:
        given = json.loads(body)
    except ValueError as error:  # UnicodeDecodeError is one, too
        raise BadRequest(
            "the body is not JSON",
            expected='{"texts": ["a text", ...]}, in UTF-8',
            got=str(error) if body else "nothing",
        ) from None
    except RecursionError:
        raise BadRequest("the body is nested too deeply", expected='{"texts": [...]}') from None
    if not isinstance(given, dict):
        raise BadRequest(
            "the body is not an object",
            expected='{"texts": ["a text", ...]}',
            got=_type(given),
        )
    unknown = [name for name in given if name not in _KEYS]
    if unknown:
        raise BadRequest(
            "the body has a name that is not known",
            expected=", ".join(_KEYS),
            got=", ".join(map(repr, unknown[:5])),
        )
    if ("text" in given) == ("texts" in given):
        raise BadRequest(
            "the body must have text or texts",
            expected='{"text": "one text"} or {"texts": ["a text", ...]}',
            got="both" if "text" in given else "neither",
        )
    is_single = "text" in given
    texts = [given["text"]] if is_single else given["texts"]
    if not isinstance(texts, list) or not texts:
        raise BadRequest(
            "texts is not a list of texts",
            where="texts",
            expected="at least one text",
            got="an empty list" if texts == [] else _type(texts),
        )
    if len(texts) > MOST_TEXTS:
        raise BadRequest(
            "there are too many texts",
            where="texts",
            expected=f"at most {MOST_TEXTS}",
            got=str(len(texts)),
            remedy="send several requests; `howdah predict` classifies files",
        )
    for number, text in enumerate(texts):
        where = "text" if is_single else f"texts[{number}]"
        sides = text if isinstance(text, list) and len(text) == 2 else [text]
        if wrong := [side for side in sides if not isinstance(side, str)]:
            raise BadRequest(
                "a text is not a string",
                where=where,
                expected="a string, or a list of two for a model of pairs",
                got=_type(wrong[0]),
            )
        if any("\ud800" <= character <= "\udfff" for side in sides for character in side):
            raise BadRequest(
                "a text is not Unicode", where=where, expected="no lone surrogates", got=ascii(text)
            )
    return Asked(tuple(texts), _key(given.get("key")), is_single)


def _key(key: Any) -> str | None:
    if key is None:
        return None
    if not isinstance(key, str) or not key or len(key) > _LONGEST_KEY:
        raise BadRequest(
            "key is not a string of 1 to 1,024 characters",
            where="key",
            expected="what stays the same for one user or session",
            got=_type(key) if not isinstance(key, str) else f"{len(key)} characters",
        )
    return key


def rows_of(texts: Sequence[str | list[str]]) -> list[Row]:
    """A request's texts as rows to classify."""
    return [
        Row(str(number), text)
        if isinstance(text, str)
        else Row(str(number), joined(*text), pair=True)
        for number, text in enumerate(texts)
    ]


def as_json(predictions: Sequence[Prediction], outputs: Outputs) -> list[dict[str, Any]]:
    """The predictions as plain JSON, in their order."""
    single, answers = outputs.task == "single_label", []
    for one in predictions:
        answer: dict[str, Any] = {outputs.name: one.label}
        if one.scores is None:
            answers.append(answer | ({"score": None} if single else {}) | {"error": one.error})
            continue
        scores = [round(float(score), 6) for score in one.scores]
        named = dict(zip(outputs.labels, scores, strict=True))
        if single:
            # Of a rejected row: the highest score, which was too low.
            answer["score"] = max(scores) if one.label is None else named[one.label]
            if one.rejected:
                answer["rejected"] = True
        if outputs.has_scores:
            answer["scores"] = named
        answers.append(answer)
    return answers


def _type(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean"}
    return names.get(type(value), "null" if value is None else "a number")
