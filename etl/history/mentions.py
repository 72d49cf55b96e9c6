"""Which rows are to be forgotten, and where a text names one of them. Pure.

An id is looked for where our writers put ids: in columns, keys and cells of their own, and in the
sentences that a rejected row's `detail` has. Beyond that a text is searched for ids that cannot be
anything else; `5` or `cat` in a text can be a step, a count or a word.
"""

from __future__ import annotations

import decimal
import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from howdah.config.splits import SPLITS
from howdah.core.terminal import shown
from howdah.data import ids
from howdah.data.lineage.forgotten import Forgotten

GONE = "[forgotten]"
"""What stands for an id in a text that stays."""
_COPY = re.compile(r"#\d+$")
_WORD = re.compile(r"\w+")
_LEAST = 8
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


def original(row_id: str) -> str | None:
    """The id without the number that a copy's has; None: it has none.

    >>> original("page#12"), original("page")
    ('page', None)
    """
    found = _COPY.search(row_id)
    return row_id[: found.start()] if found else None


def is_unmistakable(row_id: str) -> bool:
    """Whether an id found in a text can be nothing but this id: it has letters and digits, at least
    8 characters, and is no number.

    >>> [one for one in ("article-4711", "12345678", "1.5e-05", "world-cup", "v1.2") if
    ...  is_unmistakable(one)]
    ['article-4711']
    """
    try:
        float(row_id)
    except ValueError:
        mixed = any(map(str.isalpha, row_id)) and any(map(str.isdigit, row_id))
        return mixed and len(row_id) >= _LEAST
    return False


_NUMBER_TEXT = re.compile(r"-?\d+\.\d+(?:E-?\d+)?")
_TIME_TEXT = re.compile(r"(\d{4,}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d+))?(Z?)")


def spellings(value: object) -> tuple[str, ...]:
    """How a value of a column of ids can be written as an id: as `howdah.data.ids` spells it, and
    as the ETL would have spelt the number or time that a text is. Rows that were scored or
    predicted by an earlier version have texts as Spark casts them: 5.0, 1.0E7, times with a blank.

    >>> spellings(5.0), spellings("a"), spellings(None), spellings("1.0E7")
    (('5', '5.0'), ('a',), (), ('1.0E7', '10000000'))
    >>> spellings("2026-11-01 10:00:00.50")[1:]
    ('2026-11-01T10:00:00.5', '2026-11-01T10:00:00.5Z')
    """
    spelt = ids.text(value)
    if spelt is None:
        return ()
    if isinstance(value, float | decimal.Decimal):
        return tuple(dict.fromkeys((spelt, str(value))))
    if not isinstance(value, str):
        return (spelt,)
    more: list[str] = []
    if _NUMBER_TEXT.fullmatch(spelt):
        more.append(ids.text(float(spelt)) or spelt)
    if (time := _TIME_TEXT.fullmatch(spelt)) is not None:
        fraction = (time[3] or "").rstrip("0")
        at = f"{time[1]}T{time[2]}" + (f".{fraction}" if fraction else "")
        more += [f"{at}Z"] if time[4] else [at, f"{at}Z"]
    return tuple(dict.fromkeys((spelt, *more)))


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Rows that are to be forgotten."""

    ids: frozenset[str]
    """As they were asked for."""
    copies: frozenset[str] = frozenset()
    """Ids of rows that are copies of theirs (id#2), by what the rows hold."""
    marks: tuple[Forgotten, ...] = ()
    """Of the datasets: they know copies that earlier calls have removed."""
    met: set[str] = field(default_factory=set, compare=False, repr=False)
    """Those of `ids` that were found anywhere: what is looked for adds them."""

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
        return any(map(self.has, spellings(value)))

    def has_shown(self, text: str) -> bool:
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

    # --------------------------------------------------------------------------------- sentences
    def without_detail(self, detail: str | None) -> str | None:
        """A rejected row's detail, with another row that it names left out if that is one of them.

        >>> Wanted(ids=frozenset({"5"})).without_detail("same text as 5 of train")
        'same text as [forgotten] of train'
        >>> Wanted(ids=frozenset({"5"})).without_detail("text_pair: 5 characters")
        'text_pair: 5 characters'
        """
        found = _DETAIL.fullmatch(detail or "")
        if found is not None:
            named, split = found["named"], found["split"] or ""
            if self.has(named + split):
                return found["said"] + GONE
            if self.has(named):
                return found["said"] + GONE + split
        return detail

    # ------------------------------------------------------------------------------- any other text
    @cached_property
    def vague(self) -> int:
        """How many of the ids are not looked for in texts."""
        return sum(not is_unmistakable(one) for one in self.ids)

    @cached_property
    def _by_word(self) -> dict[str, list[tuple[int, str]]]:
        """{first word of an unmistakable id: (where it begins in the id, id), the longest first}"""
        found: dict[str, list[tuple[int, str]]] = {}
        for one in sorted(filter(is_unmistakable, self.exact), key=len, reverse=True):
            page = html.escape(one)  # and as Jinja writes quotes
            jinja = page.replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
            for text in dict.fromkeys((one, page, jinja)):
                word = _WORD.search(text)
                found.setdefault(word[0], []).append((word.start(), text))
        return found

    def mentions(self, text: str) -> Iterator[tuple[int, int]]:
        """(begin, end) of each unmistakable id in a text, in order; none lies in another one.

        What is before and behind it is no letter, digit, `_` or `-`, and no `#` with a number
        behind it: those would make it another id.
        """
        if not self._by_word:
            return
        after = 0
        for word in _WORD.finditer(text):
            for offset, one in self._by_word.get(word[0], ()):
                begin = word.start() - offset
                end = begin + len(one)
                if (
                    begin >= after
                    and text.startswith(one, begin)
                    and _stands_alone(text, begin, end)
                ):
                    self.met.add(one)
                    yield begin, end
                    after = end
                    break

    def without_mentions(self, text: str) -> tuple[str, int]:
        """The text with each mention replaced, and how many there were."""
        found = list(self.mentions(text))
        for begin, end in reversed(found):
            text = text[:begin] + GONE + text[end:]
        return text, len(found)


_CONTINUED = re.compile(r"[\w-]|#\d")


def _stands_alone(text: str, begin: int, end: int) -> bool:
    before = begin == 0 or not (text[begin - 1].isalnum() or text[begin - 1] in "_-")
    return before and _CONTINUED.match(text, end) is None


NOTHING = Wanted(ids=frozenset())
