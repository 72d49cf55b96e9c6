"""Which texts name a row: the sentences of rejected rows, and ids that can be nothing else."""

import re
from pathlib import Path

import pytest

from howdah.etl.history.mentions import GONE, Wanted
from howdah.etl.rows import dedup

ID = "article-4711"


def wanted(*ids: str) -> Wanted:
    return Wanted(ids=frozenset(ids))


def test_every_sentence_that_names_another_row_is_known():
    etl = Path(dedup.__file__).parents[1]
    files = ("rows/dedup.py", "history/judge.py", "rows/gate.py", "rows/images.py")
    text = "".join((etl / name).read_text("utf-8") for name in files)
    said = set(re.findall(r'F\.concat\(F\.lit\("([^"]+ )"\)', text))
    said |= set(re.findall(r'said = F\.concat\(F\.lit\("([^"]+ )"\)', text))
    said |= set(re.findall(r'f"(key )\{', text))
    said -= {"labels: ", "like rows of "}  # the names of labels, of splits
    assert {"key ", "like ", "same text as ", "another label than "} <= said
    for sentence in said:
        assert wanted("5").without_detail(f"{sentence}5") == f"{sentence}{GONE}"
        assert wanted("5").without_detail(f"{sentence}5 of test") == f"{sentence}{GONE} of test"
        assert wanted("5").without_detail(f"{sentence}55") == f"{sentence}55"


@pytest.mark.parametrize(
    "detail",
    [None, "", "5", "text_pair: 5 characters", "5,000 bytes", "labels: 5, 6", "like rows of 5"],
)
def test_numbers_in_other_details_are_no_ids(detail):
    assert wanted("5").without_detail(detail) == detail


@pytest.mark.parametrize(
    "text",
    [f"row={ID}", f"key:{ID}", f"http://h/rows?id={ID}&x=1", f"/rows/{ID}", f"<b>{ID}</b>",
     f"{ID}.", f"no row '{ID}'", ID, f"{ID}/comments", f"({ID}, 3)"],
)  # fmt: skip
def test_unmistakable_ids_are_found_in_texts(text):
    assert wanted(ID).without_mentions(text) == (text.replace(ID, GONE), 1)


@pytest.mark.parametrize("text", [f"{ID}2", f"{ID}-2", f"{ID}#2", f"x{ID}", f"an-{ID}", "article"])
def test_other_ids_are_not_taken_for_it(text):
    assert wanted(ID).without_mentions(text) == (text, 0)


def test_ids_that_can_be_something_else_are_not_looked_for_in_texts():
    found = wanted("5", "cat", "20261126", "1e-05", "step-1")
    text = "cat 5 of 20261126, lr 1e-05, step-1"
    assert found.without_mentions(text) == (text, 0) and found.vague == 5


def test_an_id_is_found_as_a_page_writes_it():
    row_id = 'a&b "12345"'
    assert wanted(row_id).without_mentions("<td>a&amp;b &#34;12345&#34;</td>")[1] == 1
    assert wanted(row_id).has_shown(row_id)
