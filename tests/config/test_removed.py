"""A key that was removed is refused with what stands in its place, wherever it is given."""

import pytest

from howdah.config import loader
from howdah.config.options.removed import REMOVED
from howdah.errors import ConfigError
from tests.config.test_config import _nested


@pytest.mark.parametrize("key", REMOVED)
def test_a_file_with_a_removed_key_is_refused_with_what_stands_in_its_place(key):
    with pytest.raises(ConfigError) as caught:
        loader.from_dict(_nested(key, "x"))
    (problem,) = caught.value.problems
    assert problem.what == f"the key {key} was removed"
    assert (problem.where, problem.remedy) == (key, REMOVED[key])


def test_the_table_has_sentences_in_order_and_no_key_that_exists():
    assert list(REMOVED) == sorted(REMOVED)
    assert all(text.endswith(".") for text in REMOVED.values())
    names = {key for key, _ in loader.keys()}  # noqa: SIM118 - a function, not a mapping
    assert not names & set(REMOVED)
