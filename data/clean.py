"""Text cleaning: the ETL applies it to a dataset, serving to the texts it classifies.

Pure functions of text and `CleanOptions`; each step can be switched off. The texts come from
strangers, so each step takes time that is linear in the text's length, whatever the text is
(tests/data/test_clean_time.py).
"""

from __future__ import annotations

import html
import re
import unicodedata

from howdah.config.data import CleanOptions

_ENTITY = re.compile(r"&(#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
# News feeds whose "&" was turned into a blank: " #36;10" is "$10", " quot;" a quotation mark.
_BROKEN_ENTITY = re.compile(
    r"(?:^|\s)(#[0-9]{2,6}|#[xX][0-9a-fA-F]{2,6}|quot|amp|lt|gt|apos|nbsp);"
)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>|<![A-Za-z][^<>]*>")
_COMMENT_OR_TAG = re.compile(rf"<!--.*?-->|{_TAG.pattern}", re.DOTALL)
_COMMENT_END = "-->"
_BREAKS = re.compile(r"[\t\n\v\f\r\x1c-\x1f\x85\u2028\u2029]+")
# Control, byte order mark, zero-width space, soft hyphen, direction marks, non-characters,
# lone surrogates. Joiners (U+200C, U+200D) stay: Indic scripts and emoji need them.
_CONTROLS = re.compile(
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u00ad\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069"
    "\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]+"
)
_SPACES = re.compile(r"\s+")
_MOST_MARKS = 30
"""Combining marks on one letter: Unicode's stream-safe text format (UAX 15). Further ones are cut,
since normalization takes the square of their number."""
# A superset of combining marks, which is fast to search: no letter, digit, blank or ASCII.
_LONG_RUN = re.compile(rf"[^\w\s\x00-\x7f]{{{_MOST_MARKS + 1},}}")


PAIR = "\x1e"
"""Between the two texts of a pair, which are one string on their way to the encoder: neither holds
this character."""


def joined(first: str, second: str) -> str:
    """A pair of texts as one string."""
    return first.replace(PAIR, " ") + PAIR + second.replace(PAIR, " ")


def clean_pair(text: str, options: CleanOptions) -> str:
    """`clean_text` of each text of a pair."""
    first, _, second = text.partition(PAIR)
    return joined(clean_text(first, options), clean_text(second, options))


def shown(text: str) -> str:
    """A pair as people read it; a text as it is.

    >>> shown(joined("a question", "its answer"))
    'a question [SEP] its answer'
    """
    return text.replace(PAIR, " [SEP] ")


def clean_text(text: str, options: CleanOptions) -> str:
    """The text with the steps of `options` applied, in an order in which no step undoes another.

    >>> clean_text("the  #36;10\\tmillion &amp; more ", CleanOptions())
    'the $10 million & more'
    """
    if options.html_entities and ("&" in text or ";" in text):
        text = _ENTITY.sub(lambda match: html.unescape(match.group(0)), text)
        text = _BROKEN_ENTITY.sub(lambda match: html.unescape(f"&{match.group(1)};"), text)
    if options.html_tags and "<" in text:
        text = _without_tags(text)
    if options.backslash_breaks and "\\" in text:
        text = text.replace("\\", " ")
    if options.control_characters:
        text = _CONTROLS.sub("", _BREAKS.sub(" ", text))
    if options.unicode_nfc and not text.isascii():
        text = unicodedata.normalize("NFC", _LONG_RUN.sub(_with_few_marks, text))
    if options.whitespace:
        text = _SPACES.sub(" ", text).strip()
    return text


def _without_tags(text: str) -> str:
    """The text with comments and tags replaced by blanks.

    Behind the last end of a comment no comment is looked for: else each `<!--` of a text without
    an end would be searched to the text's last character. No tag crosses that place, which is `>`.
    """
    before, end, behind = text.rpartition(_COMMENT_END)
    return _COMMENT_OR_TAG.sub(" ", before + end) + _TAG.sub(" ", behind)


def _with_few_marks(match: re.Match[str]) -> str:
    """The characters of a run without the combining marks beyond _MOST_MARKS in a row."""
    kept, marks = [], 0
    for character in match[0]:
        # By what it decomposes to: some marks are of class 0 themselves (U+0F73).
        first = unicodedata.normalize("NFD", character)[0]
        marks = marks + 1 if unicodedata.combining(first) else 0
        if marks <= _MOST_MARKS:
            kept.append(character)
    return "".join(kept)
