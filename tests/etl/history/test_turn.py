"""Two runs that append to one version: only one commits."""

import json
import os
import threading

import pytest

from howdah import storage
from howdah.data.manifest import commit, load_dataset
from howdah.errors import DataError
from howdah.etl.history.turn import turn
from howdah.etl.workspace.staging import Lease
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
    with Lease(f"{root}/v=mine") as lease:
        with turn(root, began, lease):
            pass
        commit(f"{root}/v=other", later)
        with pytest.raises(DataError) as caught, turn(root, began, lease):
            pytest.fail("it may not commit")
    assert "v=other" in str(caught.value) and began.path in str(caught.value)
    assert turns(root) == []


def test_of_runs_that_commit_at_once_one_goes_on(root):
    began, _ = version_of(root, "none")
    count, committed, refused = 8, [], []
    at_once = threading.Barrier(count)

    def run(number):
        _, later = version_of(root, f"run-{number}")
        with Lease(f"{root}/v=run-{number}") as lease:
            at_once.wait()
            try:
                with turn(root, began, lease):
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
    stem = f"_turn-{storage.name(began.path)}"
    body = json.dumps({"version": "v=dead", "token": "0badcafe"}).encode()
    storage.write_whole(f"{root}/{stem}.1.json", body)  # no lease: its run has been swept
    dead = Lease(f"{root}/v=killed")
    dead.beat()
    lease_file = f"{root}/v=killed/_run-{dead.token}.json"
    gone = storage.read_json(lease_file) | {"pid": 2**22 + 1}
    storage.write_whole(lease_file, json.dumps(gone).encode())
    body = json.dumps({"version": "v=killed", "token": dead.token}).encode()
    storage.write_whole(f"{root}/{stem}.2.json", body)
    with Lease(f"{root}/v=mine") as lease, turn(root, began, lease):
        assert os.path.exists(f"{root}/{stem}.3.json")
        with (
            Lease(f"{root}/v=late") as late,
            pytest.raises(DataError, match="at this moment"),
            turn(root, began, late),
        ):
            pytest.fail("it may not commit")


def test_the_first_part_of_all_has_a_turn_too(tmp_path):
    root = str(tmp_path)
    with Lease(f"{root}/v=a") as one, Lease(f"{root}/v=b") as two, turn(root, None, one):
        with pytest.raises(DataError), turn(root, None, two):
            pytest.fail("it may not commit")
