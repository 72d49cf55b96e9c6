"""Mail addresses and phone numbers in users' texts, which pages show masked.

Texts come from strangers: each pattern's repetitions are bounded, so that a text takes time in
proportion to its length. Texts that were decoded from token ids have blanks around `@` and dots.
"""

from __future__ import annotations

import re
from typing import Literal, assert_never

Shown = Literal["masked", "plain", "none"]
"""How pages show texts (`report.texts`)."""

MAIL = re.compile(
    r"(?<![\w.+-])[\w.+-]{1,64}(?:@[\w-]{1,63}(?:\.[\w-]{1,63}){0,8}"
    r"| ?@ ?[\w-]{1,63}(?: ?\. ?[A-Za-z]{2,24}){1,4})"
)
_DIGITS = re.compile(r"(?<![\w.,/-])[+(]?(?: ?[-./()]{0,2} ?\d){7,16}(?![\w/]|[.,-]\d)")
_NO_PHONE = re.compile(r"\d{1,2}([./-])\d{1,2}\1\d{2,4}|\d{0,12}\.\d{1,16}")
"""Dates, and numbers with a point."""
_GROUPS = re.compile(r"1? ?[-.]? ?\(? ?\d{3} ?[-. )]{1,2} ?\d{3} ?[-. ] ?\d{4}")
"""The form of North America, which needs no zero or plus at its beginning."""


def masked(text: str) -> str:
    """Return a text with `[mail]` and `[phone]` in the places of such addresses and numbers.

    >>> masked("write to zoe.b+x@example.com or zoe @ example. com, call +49 (0)170 123 45-67")
    'write to [mail] or [mail], call [phone]'
    >>> masked("(555) 123-4567 until 01.02.2026, order 4711 of 1,234,567 for 0.12345678")
    '[phone] until 01.02.2026, order 4711 of 1,234,567 for 0.12345678'
    """
    return _DIGITS.sub(lambda match: _number(match[0]), MAIL.sub("[mail]", text))


def kinds(text: str) -> set[str]:
    """Return which of `mail` and `phone` a text has.

    >>> sorted(kinds("me@example.com, 0170 1234567")), kinds("on 2026-11-28, 12345678 rows")
    (['mail', 'phone'], set())
    """
    shown = masked(text)
    return {
        kind for kind in ("mail", "phone") if shown.count(f"[{kind}]") > text.count(f"[{kind}]")
    }


def sample(text: str, shown: Shown) -> str | None:
    """Return a text as pages show it; None: it is not shown."""
    if shown == "masked":
        return masked(text)
    if shown == "plain":
        return text
    if shown == "none":
        return None
    assert_never(shown)


def _number(text: str) -> str:
    """Return `[phone]` for a phone number, and any other number as it is."""
    bare = text.strip()
    digits = sum(character.isdigit() for character in bare)
    if _NO_PHONE.fullmatch(bare) or digits > 15:
        return text
    fewest = 10 if bare.isdigit() else 8  # 00000012 is a padded number
    if _GROUPS.fullmatch(bare) or (digits >= fewest and bare[0] in "+(0"):
        return text.replace(bare, "[phone]")
    return text
