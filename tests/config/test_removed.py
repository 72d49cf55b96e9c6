"""A key that was removed is refused with what stands in its place, wherever it is given."""

import pytest

from howdah.config import loader
from howdah.config.options.removed import REMOVED
from howdah.errors import ConfigError, UsageError
from howdah.policy import rules
from tests.config.test_config import _nested


@pytest.mark.parametrize("key", REMOVED)
def test_a_file_with_a_removed_key_is_refused_with_what_stands_in_its_place(key):
    with pytest.raises(ConfigError) as caught:
        loader.from_dict(_nested(key, "x"))
    # A section that the key alone would make may also lack what it needs.
    (problem,) = (one for one in caught.value.problems if one.what.startswith("the key"))
    assert problem.what == f"the key {key} was removed"
    assert (problem.where, problem.remedy) == (key, REMOVED[key])


def test_the_table_has_sentences_in_order_and_no_key_that_exists():
    assert list(REMOVED) == sorted(REMOVED)
    assert all(text.endswith(".") for text in REMOVED.values())
    names = {key for key, _ in loader.keys()}  # noqa: SIM118 - a function, not a mapping
    assert not names & set(REMOVED)


def test_there_are_at_most_two_hundred_keys():
    assert sum(1 for _ in loader.keys()) <= 200  # noqa: SIM118 - a function, not a mapping


def test_overrides_policies_and_explanations_refuse_it_likewise():
    sentence = REMOVED["job.attempts"]
    with pytest.raises(ConfigError) as caught:
        loader.load(None, ["job.attempts=3"])
    assert caught.value.problems[0].remedy == sentence
    with pytest.raises(ConfigError, match=r"'job\.attempts'; it was removed: job\.max_restarts"):
        rules.from_dict({"keys": ["job.attempts"]})
    with pytest.raises(UsageError) as caught:
        loader.explain("job.attempts")
    assert caught.value.remedy == f"it was removed: {sentence}"


def test_a_key_of_a_removed_section_is_refused_with_the_section_s_sentence():
    assert (
        loader.nearest(["data", "image", "min_side"]) == f"it was removed: {REMOVED['data.image']}"
    )


def test_a_key_of_another_section_is_named():
    with pytest.raises(ConfigError) as caught:
        loader.from_dict({"yarn": {"hang_seconds": 3}})
    assert caught.value.problems[0].remedy == "did you mean job.hang_seconds?"
