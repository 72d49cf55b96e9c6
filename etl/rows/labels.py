"""Label names and their numbers."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence

from howdah.config.data import DataSection
from howdah.data.targets import label_mapping
from howdah.errors import DataError
from howdah.etl.rows.gate import RowRules

MOST_LABELS = 10_000
_UNSEEN = re.compile("[\u200c\u200d\ufe00-\ufe0f]+")


def rules(data: DataSection) -> RowRules:
    """How the gate reads the source's rows."""
    return RowRules(
        names=label_mapping(data),
        task=data.task,
        separator=data.columns.label_separator,
        pairs=data.columns.text_pair is not None,
    )


def names(data: DataSection, counts: Mapping[str, int], before: Sequence[str] = ()) -> list[str]:
    """Label names by number: the config's in their order, or all found, sorted.

    Args:
        counts: {label name: rows that passed the gate}.
        before: labels that have numbers already, which they keep; new ones come after them.

    Raises:
        DataError: fewer than two labels, or too many for a column of labels.
    """
    mapping = label_mapping(data)
    if mapping is not None:
        ordered = list(dict.fromkeys(mapping.values()))
    elif all(n.removeprefix("-").isdecimal() and n.isascii() for n in counts):
        ordered = sorted(counts, key=lambda name: (int(name), name))  # "2" before "10"; "01", "1"
    else:
        ordered = sorted(counts)
    ordered = list(dict.fromkeys((*before, *ordered)))
    present = [name for name in ordered if counts.get(name)]
    if len(present) < 2 and not before:
        raise DataError(
            "a classifier needs rows of at least two labels",
            where=f"data.columns.label: {data.columns.label}",
            got=", ".join(present) or "no label",
            remedy="check data.columns.label and data.labels; see the rejected rows' reasons",
        )
    refuse_too_many(data, len(ordered), ordered[0], ordered[-1])
    return ordered


def refuse_too_many(data: DataSection, count: int, *examples: str | None) -> None:
    """Fail where the label column has more different values than any column of labels.

    Args:
        count: of the different values; an estimate will do.
        examples: some of them.
    """
    if count > MOST_LABELS:
        raise DataError(
            "the label column has too many values to be one",
            where=f"data.columns.label: {data.columns.label}",
            expected=f"at most {MOST_LABELS:,} labels",
            got=f"{count:,}, such as {', '.join(repr(value)[:80] for value in examples)}",
        )


def similar(names: Iterable[str]) -> list[list[str]]:
    """Names that a reader cannot tell apart, but for their case: in letters composed by Unicode,
    in blanks, joiners and variation selectors.

    >>> similar(["Sports", "World", "sports"])
    [['Sports', 'sports']]
    """
    alike: dict[str, list[str]] = {}
    for name in names:
        seen = _UNSEEN.sub("", unicodedata.normalize("NFC", name)).casefold()
        alike.setdefault(" ".join(seen.split()), []).append(name)
    return [group for group in alike.values() if len(group) > 1]


def refuse_unknown(data: DataSection, unknown: Mapping[str, int]) -> None:
    """Fail on labels that `data.labels` does not list, if data.quality.unknown_label says so.

    Args:
        unknown: {value in the source: rows}.
    """
    mapping = label_mapping(data)
    fails = {"fail": True, "reject": False}[data.quality.unknown_label]
    if mapping is None or not fails or not unknown:
        return
    rows = ", ".join(f"{value!r} ({count} rows)" for value, count in sorted(unknown.items())[:5])
    near = [n for value in unknown for n in difflib.get_close_matches(value, mapping, n=1)]
    raise DataError(
        "the source has labels that data.labels does not list",
        where=f"data.columns.label: {data.columns.label}",
        expected=", ".join(list(mapping)[:20]),
        got=rows + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""),
        remedy=(f"did you mean {near[0]!r}? " if near else "")
        + "list them in data.labels, or set data.quality.unknown_label: reject",
    )
