"""Shortens long texts for display, with a note of how much was left out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_NOTE = re.compile(r"\n\[\.\.\. [\d,]+ of (\d[\d,]{0,19}) characters left out \.\.\.\]\n")
_SHARES = (1, 4, 16, 64, 256)


def text(value: str, most: int) -> str:
    """The beginning and the end of a text, about `most` characters.

    >>> text("a" * 300 + "z" * 300, 100)[-40:]
    'characters left out ...]\\nzzzzzzzzzzzzzzz'
    """
    if len(value) <= most:
        return value
    tail = most // 4
    head, length = most - tail, len(value)
    before = _NOTE.search(value)
    if before:  # shortened before: count what that left out, too
        value = value[: before.start()] + value[before.end() :]
        length = int(before[1].replace(",", ""))
    note = f"[... {length - head - tail:,} of {length:,} characters left out ...]"
    return f"{value[:head]}\n{note}\n{value[len(value) - tail :]}"


def message(value: Mapping[str, Any], most_bytes: int) -> dict[str, Any]:
    """A JSON object of at most `most_bytes`: its longest strings are shortened.

    Lists of strings lose their middle. If that does not suffice, long values are left out, and the
    key "cut" says so.
    """
    size = len(json.dumps(value))
    if size <= most_bytes:
        return dict(value)
    for share in _SHARES:
        shortened = _short(value, max(16, most_bytes // (2 * share)), max(4, 200 // share))
        if len(json.dumps(shortened)) <= most_bytes:
            return shortened
    kept = [(n, one) for n, one in value.items() if len(n) + len(json.dumps(one)) <= 100]
    return {**dict(kept[: most_bytes // 200]), "cut": f"{size:,} bytes, too much, left out"}


def _short(value: Any, characters: int, items: int) -> Any:
    if isinstance(value, str):
        return text(value, characters)
    if isinstance(value, Mapping):
        return {name: _short(one, characters, items) for name, one in value.items()}
    if isinstance(value, list):
        if len(value) > items and all(isinstance(one, str) for one in value):
            head, tail = items // 2, items - items // 2
            note = f"[... {len(value) - items:,} of {len(value):,} lines left out ...]"
            value = [*value[:head], note, *value[-tail:]]
        return [_short(one, characters, items) for one in value]
    return value
