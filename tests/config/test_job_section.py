"""Keys of a job were in the section `yarn` before: an old one is refused with its new name."""

import pytest

from howdah.config import loader
from howdah.errors import ConfigError, UsageError
from howdah.policy import rules


def test_a_key_that_was_in_the_section_yarn_is_refused_with_its_name_now():
    with pytest.raises(ConfigError) as caught:
        loader.from_dict({"yarn": {"workers": 3, "worker": {"memory": "4 GiB"}, "queue": "q"}})
    assert [problem.what for problem in caught.value.problems] == [
        "yarn.workers is job.workers now", "yarn.worker is job.worker now",
    ]  # fmt: skip
    assert all("job" in problem.remedy for problem in caught.value.problems)
    with pytest.raises(UsageError) as caught:
        loader.explain("yarn.hang_seconds")
    assert caught.value.remedy == "it is job.hang_seconds now"


def test_an_override_and_a_policy_are_refused_likewise():
    with pytest.raises(ConfigError, match=r"yarn\.env is job\.env now"):
        loader.load(None, ["yarn.env={A: '1'}"])
    with pytest.raises(ConfigError, match=r"'yarn\.workers'; it is job\.workers now"):
        rules.from_dict({"keys": ["yarn.workers"]})
