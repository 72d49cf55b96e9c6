"""Profiles of scored partitions are found, in the order of their values."""

import pytest

from howdah import storage
from howdah.errors import UsageError
from howdah.models.profile.profile import Profile
from howdah.serving.drift import scored
from tests.serving.drift import samples


@pytest.fixture
def root(tmp_path) -> str:
    """A model's directory with twelve scored hours."""
    profile = Profile.like(samples.reference())
    profile.add(*samples.rows(1, 20))
    for hour in range(1, 13):
        directory = f"{tmp_path}/scored/db.t/hour={hour}"
        storage.make_dirs(directory)
        storage.write_whole(f"{directory}/profile.json", profile.to_bytes())
        storage.write_whole(f"{directory}/done.json", b'{"scored_at": "2026-11-01"}')
    return str(tmp_path)


def names(root: str) -> list[str]:
    return [one.name for one in scored.history(root, "db.t", until="hour=11", most=30)]


def test_a_partition_that_is_not_scored_is_refused_with_the_newest_ones(root):
    with pytest.raises(UsageError) as caught:
        scored.find(root, "db.t", "hour=30")
    assert caught.value.expected == "one of hour=8, hour=9, hour=10, hour=11, hour=12"
    assert caught.value.remedy == "`howdah score` scores it"
    storage.remove(f"{root}/scored/db.t/hour=9/profile.json")
    with pytest.raises(UsageError, match="without a profile") as caught:
        scored.find(root, "db.t", "hour=9")
    assert "`howdah score --force`" in caught.value.remedy


@pytest.mark.parametrize("name", ["profile.json", "done.json"])
@pytest.mark.parametrize("data", [b'{"scored_at', b"[]", b"\xff"])
def test_a_damaged_partition_does_not_hide_the_others(root, name, data):
    assert names(root) == [f"hour={hour}" for hour in range(1, 12)]
    storage.write_whole(f"{root}/scored/db.t/hour=3/{name}", data)
    assert names(root) == [f"hour={hour}" for hour in range(1, 12) if hour != 3]
