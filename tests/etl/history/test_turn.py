"""Two runs that append to one version: only one commits."""

import os
import threading
from dataclasses import replace

import pytest

from howdah import storage
from howdah.data.manifest import commit, load_dataset, newest
from howdah.errors import DataError
from howdah.etl.history import turn as turn_module
from howdah.etl.history.turn import turn
from howdah.storage.lease import Lease
from tests.support.rows.appended import build_appended


@pytest.fixture
def root(tmp_path, tiny_model_dir):
    root = str(tmp_path / "dataset")
    build_appended(root, model_dir=tiny_model_dir)
    return root


def version_of(root, name):
    """What a run would commit: the newest version under another name."""
    began = load_dataset(root)
    later = began.manifest.model_copy(update={"created": "2999-01-01", "dataset_hash": name})
    return began, later


def turns(root):
    return [entry.name for entry in storage.list_dir(root) if entry.name.startswith("_turn-")]


def test_a_version_that_came_meanwhile_stops_the_commit(root):
    began, later = version_of(root, "other")
    with turn(root, began):
        pass
    commit(f"{root}/v=other", later)
    with pytest.raises(DataError) as caught, turn(root, began):
        pytest.fail("it may not commit")
    assert "v=other" in str(caught.value) and began.path in str(caught.value)
    assert turns(root) == []


def test_of_runs_that_commit_at_once_one_goes_on(root):
    began, _ = version_of(root, "none")
    count, committed, refused = 8, [], []
    at_once = threading.Barrier(count)

    def run(number):
        _, later = version_of(root, f"run-{number}")
        at_once.wait()
        try:
            with turn(root, began):
                commit(f"{root}/v=run-{number}", later)
                committed.append(number)
        except DataError:
            refused.append(number)

    runs = [threading.Thread(target=run, args=[number]) for number in range(count)]
    for each in runs:
        each.start()
    for each in runs:
        each.join()
    assert (len(committed), len(refused)) == (1, count - 1)
    assert turns(root) == []


def test_the_turn_of_a_run_that_has_died_is_passed_over(root):
    began, _ = version_of(root, "none")
    stem = f"{root}/_turn-{storage.name(began.path)}"
    killed = replace(Lease(stem).contents, pid=2**22 + 1)
    for number in (1, 2):
        storage.write_whole(f"{stem}.{number}.json", killed.as_json())
    with turn(root, began):
        assert os.path.exists(f"{stem}.3.json")
        with pytest.raises(DataError, match="is being committed now"), turn(root, began):
            pytest.fail("it may not commit")


def test_a_run_that_was_suspended_in_its_turn_does_not_commit(root, monkeypatch):
    began, _ = version_of(root, "none")

    def overtaken(dataset):
        Lease.of_series(f"{root}/_turn-{storage.name(began.path)}", 2).acquire()
        return newest(dataset)

    monkeypatch.setattr(turn_module, "newest", overtaken)
    with pytest.raises(DataError, match="is being committed now"), turn(root, began):
        pytest.fail("it may not commit")


def test_the_first_part_of_all_has_a_turn_too(tmp_path):
    root = str(tmp_path)
    with turn(root, None), pytest.raises(DataError), turn(root, None):
        pytest.fail("it may not commit")
