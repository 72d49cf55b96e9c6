"""Cleaning takes time that is linear in a text's length, whatever a stranger writes into it."""

import random
import re
import time
import unicodedata

import pytest

from howdah.config.data import CleanOptions
from howdah.data import clean

ALL = CleanOptions(html_tags=True, backslash_breaks=True)
STEPS = [name for name, kind in CleanOptions.model_fields.items() if kind.annotation is bool]
ONE = 10_000
"""Characters; ten times as many take more than ten seconds where the time is their square."""
QUICK = 0.25
"""Seconds for 100,000 characters that pass whatever the ratio is: a hundredth of the square's."""
PARTS = [
    "<!--", "<!-- ", "<!-->", "-->", "<!---->", "<", ">", "<a", "<a ", "</a", "<!D", "<!", "&",
    "&amp", "&amp;", "&#1", "&#x", " #36", " #36;", " quot;", ";", "\\", "\n", "\r\n", " ", "\t\n",
    "\u2028", "\x00", "\u200b", "\ufeff", "\ud800", "\u0301", "a\u0301", "\u0301\u0323",
    "e" + "\u0301" * 30, "\u0344", "\u0f73", "\u094d", "\U0001d165", "\u1161", "\u1100\u1161",
    "\uac00", "\u09c7\u09be", "é", "\u3002", "😀", "x",
]  # fmt: skip


def seconds(text: str, options: CleanOptions) -> float:
    """The least of three runs: what else the machine does makes none of them faster."""
    times = []
    for _ in range(3):
        began = time.perf_counter()
        clean.clean_text(text, options)
        times.append(time.perf_counter() - began)
        if times[-1] < QUICK:
            break
    return min(times)


@pytest.mark.parametrize("part", PARTS, ids=ascii)
def test_ten_times_the_text_takes_ten_times_the_time(part):
    text = part * (10 * ONE // len(part))
    whole = seconds(text, ALL)
    assert whole < QUICK or whole < 40 * seconds(text[:ONE], ALL)


@pytest.mark.parametrize("step", STEPS)
def test_each_step_alone_is_linear_in_texts_that_mix_everything(step):
    off = dict.fromkeys(STEPS, False)
    options = CleanOptions(**{**off, step: True})
    for seed in range(3):
        text = "".join(random.Random(seed).choices(PARTS, k=10 * ONE))[: 10 * ONE]
        whole = seconds(text, options)
        assert whole < QUICK or whole < 40 * seconds(text[:ONE], options)


def test_tags_are_what_they_were():
    """The same texts as by the one expression that searched for comments everywhere."""
    before = re.compile(r"<!--.*?-->|</?[A-Za-z][^<>]*>|<![A-Za-z][^<>]*>", re.DOTALL)
    only = CleanOptions(**{**dict.fromkeys(STEPS, False), "html_tags": True})
    parts = ["<!--", "-->", "<", ">", "<a", "b ", "</", "<!D", "-", "--", "!", "\n"]
    draw = random.Random(46)
    for _ in range(20_000):
        text = "".join(draw.choices(parts, k=draw.randrange(1, 14)))
        assert clean.clean_text(text, only) == before.sub(" ", text)


def test_a_letter_keeps_thirty_combining_marks():
    only = CleanOptions(**{**dict.fromkeys(STEPS, False), "unicode_nfc": True})
    for mark in ("\u0301", "\u0f73", "\u0344"):
        for count in (1, 29, 30):
            text = "x" + mark * count + "y"
            assert clean.clean_text(text, only) == unicodedata.normalize("NFC", text)
        kept = clean.clean_text("x" + mark * 30 + "y", only)
        assert clean.clean_text("x" + mark * 31 + "y", only) == kept
        assert clean.clean_text("x" + mark * 5000 + "y", only) == kept
    # Other characters that are neither letters nor blanks may stand in a row as often as they like.
    for text in ("\u3002" * 100, "😀" * 100, "\u2014" * 31 + "\u0301"):
        assert clean.clean_text(text, only) == unicodedata.normalize("NFC", text)


def test_every_combining_mark_of_unicode_is_counted():
    marks = [
        chr(code) for code in range(0x110000)
        if unicodedata.combining(unicodedata.normalize("NFD", chr(code))[0])
    ]  # fmt: skip
    assert len(marks) > 800
    only = CleanOptions(**{**dict.fromkeys(STEPS, False), "unicode_nfc": True})
    for mark in marks:
        cut = clean.clean_text("x" + mark * 40, only)
        assert cut == unicodedata.normalize("NFC", "x" + mark * 30), ascii(mark)
