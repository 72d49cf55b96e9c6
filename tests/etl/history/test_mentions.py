"""Which texts name a row: the sentences of rejected rows, and the ids that a page shows."""

import re
from pathlib import Path

import pytest

from howdah.etl.history.mentions import GONE, Targets
from howdah.etl.rows import dedup


def targets(*ids: str) -> Targets:
    return Targets(ids=frozenset(ids))


def test_every_sentence_that_names_another_row_is_known():
    etl = Path(dedup.__file__).parents[1]
    files = ("rows/dedup.py", "history/judge.py", "rows/gate.py", "rows/images.py")
    text = "".join((etl / name).read_text("utf-8") for name in files)
    sentences = set(re.findall(r'F\.concat\(F\.lit\("([^"]+ )"\)', text))
    sentences |= set(re.findall(r'f"(key )\{', text))
    sentences -= {"labels: ", "like rows of "}  # the names of labels, of splits
    assert {"key ", "like ", "same text as ", "another label than "} <= sentences
    for sentence in sentences:
        assert targets("5").without_detail(f"{sentence}5") == f"{sentence}{GONE}"
        assert targets("5").without_detail(f"{sentence}5 of test") == f"{sentence}{GONE} of test"
        assert targets("5").without_detail(f"{sentence}55") == f"{sentence}55"


@pytest.mark.parametrize(
    "detail",
    [None, "", "5", "text_pair: 5 characters", "5,000 bytes", "labels: 5, 6", "like rows of 5"],
)
def test_numbers_in_other_details_are_no_ids(detail):
    assert targets("5").without_detail(detail) == detail


def test_an_id_is_found_as_a_page_shows_it():
    assert targets("a\u202eb").has_as_shown("a\\u202eb")
