"""Cleaning: each step, its switch, and what must hold for every text."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from howdah.config.data import CleanOptions
from howdah.data.clean import clean_text

OFF = dict.fromkeys(CleanOptions.model_fields, False)


def only(**steps):
    return CleanOptions(**{**OFF, **steps})


@pytest.mark.parametrize(
    ("step", "text", "cleaned"),
    [
        ("unicode_nfc", "Cafe\u0301", "Caf\u00e9"),
        ("html_entities", "a &amp; b &lt;i&gt; &#36;5 &#x24;6", "a & b <i> $5 $6"),
        ("html_entities", "the  #36;10 million", "the $10 million"),
        ("html_entities", "Canada #39;s S amp;P", "Canada's S&P"),
        ("html_entities", "says  quot;yes quot; today", 'says "yes" today'),
        ("html_entities", "f(x)&copy=2; issue #36; no: a#36;", "f(x)&copy=2; issue$ no: a#36;"),
        ("html_entities", "&nosuchname; stays", "&nosuchname; stays"),
        ("html_tags", "a <b>bold</b><br/> c <!-- no --> 1 < 2", "a  bold   c   1 < 2"),
        ("backslash_breaks", "for the\\first time", "for the first time"),
        ("control_characters", "a\x00b\ufeffc\nd\te\u200bf", "abc d ef"),
        ("control_characters", "lone \ud800 surrogate", "lone  surrogate"),
        ("control_characters", "joined a\u200db", "joined a\u200db"),
        ("whitespace", "  a \u00a0\n b  ", "a b"),
    ],
)
def test_each_step_alone_and_off(step, text, cleaned):
    assert clean_text(text, only(**{step: True})) == cleaned
    assert clean_text(text, only()) == text


def test_markup_behind_entities_goes_when_both_steps_are_on():
    options = CleanOptions(html_tags=True)
    assert clean_text("&lt;b&gt;Oil&lt;/b&gt; up", options) == "Oil up"


def test_steps_do_not_undo_each_other():
    # the zero-width space stands between a letter and its accent: NFC must come after its removal
    assert clean_text("Cafe\u200b\u0301", CleanOptions()) == "Caf\u00e9"
    # an entity may be a control character or white space
    assert clean_text("a&#0;&nbsp;&#10;b", CleanOptions()) in ("a b", "a\ufffd b")


@settings(deadline=None, derandomize=True)
@given(st.text())
def test_cleaned_text_has_no_markup_controls_or_outer_blanks(text):
    cleaned = clean_text(text, CleanOptions())
    assert cleaned == unicodedata.normalize("NFC", cleaned)
    assert cleaned == cleaned.strip()
    assert "  " not in cleaned and "\n" not in cleaned
    assert not any(unicodedata.category(c) in ("Cc", "Cs") for c in cleaned)
    cleaned.encode("utf-8")


@settings(deadline=None, derandomize=True)
@given(st.text(alphabet=st.characters(blacklist_characters="&;", blacklist_categories=["Cs"])))
def test_cleaning_twice_changes_nothing_more(text):
    once = clean_text(text, CleanOptions())
    assert clean_text(once, CleanOptions()) == once
