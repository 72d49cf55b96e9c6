"""Which rows are to be forgotten, and where a file of Howdah's names one of them. Pure.

An id is looked for where Howdah's writers put ids: in columns and cells of their own, and in the
sentences of a rejected row's `detail`. `5` or `cat` in any other text can be a step or a word.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

from howdah.config.splits import SPLITS
from howdah.core.terminal import shown
from howdah.data import ids
from howdah.data.lineage.forgotten import Forgotten

GONE = "[forgotten]"
"""What stands for an id in a text that stays."""
_COPY = re.compile(r"#\d+$")
_DETAIL = re.compile(
    r"(?P<said>(?:key|like|same text as|another label than"
    r"|in a bucket too large to compare with) )"
    rf"(?P<named>.+?)(?P<split> of (?:{'|'.join(SPLITS)}))?",
    re.DOTALL,
)
"""Details of etl/rows/dedup.py, etl/history/judge.py and etl/rows/gate.py that name a row."""
READ = (
    "duplicate_id", "malformed", "bad_split", "bad_time", "wrong_encoding", "empty", "too_short",
    "too_long", "undecodable", "too_small", "too_large", "bad_label", "bad_target",
)  # fmt: skip
"""Reasons of rows that are rejected as they are read or at the gate: such a row may be one whose
key another row has, which is named <key>#<number>."""


def text_id(row_id: bytes) -> str:
    """A record's id as predictions and rejects show it."""
    return row_id.decode("utf-8", "backslashreplace")


def original(row_id: str) -> str | None:
    """The id without the number that a copy's has; None: it has none.

    >>> original("page#12"), original("page")
    ('page', None)
    """
    match = _COPY.search(row_id)
    return row_id[: match.start()] if match else None


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Rows that are to be forgotten."""

    ids: frozenset[str]
    """Ids that the user gave."""
    copies: frozenset[str] = frozenset()
    """Ids of rows that are copies of theirs (id#2), by what the rows hold."""
    marks: tuple[Forgotten, ...] = ()
    """Marks of the datasets: they know copies that earlier calls have removed."""
    met: set[str] = field(default_factory=set, compare=False, repr=False)
    """Those of `ids` that a search has met; each search adds to it."""

    @cached_property
    def exact(self) -> frozenset[str]:
        """All ids that are known."""
        return self.ids | self.copies

    def has(self, row_id: str) -> bool:
        """Whether a row is one of them, or a copy that is known as one.

        `page#12` is not taken for a copy of `page` because of its name.
        """
        if row_id in self.exact:
            self.met.add(row_id)
            return True
        return original(row_id) in self.ids and any(mark.when(row_id) for mark in self.marks)

    def has_value(self, value: object) -> bool:
        """`has` of a value in a column or under a key of ids."""
        row_id = ids.text(value)
        return row_id is not None and self.has(row_id)

    def has_as_shown(self, text: str) -> bool:
        """`has` of an id as a page shows it: control characters are escaped there."""
        return self.has(text) or text in self._shown

    def has_rejected(self, row_id: str | None, reason: str | None) -> bool:
        """`has` of a rejected row; of one that was rejected as it was read, its key counts too."""
        if row_id is None:
            return False
        key = original(row_id)
        return self.has(row_id) or (reason in READ and key is not None and self.has(key))

    @cached_property
    def _shown(self) -> frozenset[str]:
        return frozenset(map(shown, self.exact))

    def without_detail(self, detail: str | None) -> str | None:
        """A rejected row's detail, with another row that it names left out if that is one of them.

        >>> Targets(ids=frozenset({"5"})).without_detail("same text as 5 of train")
        'same text as [forgotten] of train'
        >>> Targets(ids=frozenset({"5"})).without_detail("text_pair: 5 characters")
        'text_pair: 5 characters'
        """
        match = _DETAIL.fullmatch(detail or "")
        if match is not None:
            named, split = match["named"], match["split"] or ""
            if self.has(named + split):
                return match["said"] + GONE
            if self.has(named):
                return match["said"] + GONE + split
        return detail


NOTHING = Targets(ids=frozenset())
