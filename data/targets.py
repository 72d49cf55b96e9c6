"""What a row is to be predicted as, by task: a label, any number of them, or a number.

In the ETL a row's label is one text, its name; of several labels their names as a JSON list,
sorted, each once, so that equal sets are equal texts; of a target its shortest decimal form. In
records and indexes it is a `Label`.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import assert_never

import numpy as np

from howdah.config.data import DataSection
from howdah.config.tasks import Task
from howdah.data.manifest import TargetEntry

Label = int | tuple[int, ...] | float
"""A label's number; those of a row of several; a target."""

_LARGEST = float(np.finfo(np.float32).max)
# Control characters, soft hyphen, zero-width space, direction marks, byte order mark, as texts lose
# them by data.clean.control_characters. Joiners stay: Persian and Indic words need them.
UNSEEN = (
    r"\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069"
    r"\ufeff\ufff9-\ufffb\ufffe\uffff"
)
"""Inside of a character class, for Python's expressions and Java's."""
_INVISIBLE = re.compile(rf"[{UNSEEN}\ud800-\udfff]+")
BLANKS = "".join(one for one in map(chr, range(0x3001)) if one.isspace())
"""What `str.strip` removes."""


def label_name(value: str) -> str:
    """The label for a value of a source: the value without invisible characters, and without blanks
    at its ends.

    >>> label_name(" up\u00a0"), label_name("down\u200b"), label_name("\ufeffA b")
    ('up', 'down', 'A b')
    """
    return _INVISIBLE.sub("", value).strip()


def label_mapping(data: DataSection) -> dict[str, str] | None:
    """{value in the source: label name} of the config, or None where every value is a label.

    Values are spelt as `label_name` spells those of rows.
    """
    if data.labels is None:
        return None
    if isinstance(data.labels, dict):
        return {label_name(value): name for value, name in data.labels.items()}
    return {label_name(name): name.strip() for name in data.labels}


def label_set(text: str, separator: str) -> list[str] | None:
    """The labels that a source's text lists: a JSON list, or texts between separators.

    None: it begins as a JSON list but is not one of texts and whole numbers, or names nothing.

    >>> label_set("b, a,b", ","), label_set('["a, b"]', ","), label_set("[]", ",")
    (['a', 'b'], ['a, b'], [])
    >>> label_set(" ", ",") is None
    True
    """
    if text.lstrip().startswith("["):
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):  # RecursionError: brackets, thousands deep
            return None
        if any(isinstance(one, bool) or not isinstance(one, str | int) for one in parsed):
            return None
        names = {label_name(str(one)) for one in parsed}
        return None if "" in names else sorted(names)
    return sorted({label_name(name) for name in text.split(separator)} - {""}) or None


def set_text(names: Iterable[str]) -> str:
    """Names as one text, the same for equal sets."""
    return json.dumps(sorted(set(names)), ensure_ascii=False, separators=(",", ":"))


def target_text(text: str) -> str | None:
    """A finite number in its shortest form; None: it is not a number that float32 can hold.

    >>> target_text(" 1e-1"), target_text("NaN"), target_text("1_0"), target_text("-0")
    ('0.1', None, None, '0.0')
    """
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        return None
    return repr(value + 0.0) if abs(value) <= _LARGEST else None


def labels_as(task: Task, labels: Iterable) -> list[Label]:
    """Labels of rows as a record and an index take them."""
    if task == "multi_label":
        return [tuple(int(number) for number in row) for row in labels]
    if task == "regression":
        return [float(value) for value in labels]
    if task != "single_label":
        assert_never(task)
    return [int(number) for number in labels]


def summary(
    task: Task, labels: list
) -> tuple[np.ndarray, np.ndarray | None, Counter[int], TargetEntry | None]:
    """(labels and starts for the index, rows of each label, sums of targets) of a shard's rows."""
    if task == "regression":
        values = np.array(labels, np.float32)
        exact = values.astype(np.float64)
        target = TargetEntry(
            least=float(exact.min()),
            most=float(exact.max()),
            total=float(exact.sum()),
            squares=float(exact @ exact),
        )
        return values, None, Counter(), target
    if task == "multi_label":
        flat = [number for row in labels for number in row]
        starts = np.cumsum([0, *map(len, labels)], dtype=np.int64)
        return np.array(flat, np.int32), starts, Counter(flat), None
    if task != "single_label":
        assert_never(task)
    return np.array(labels, dtype=np.int32), None, Counter(labels), None
