"""Run directories that other users made, or may write to, are refused; new ones are private."""

import os
import subprocess
import sys

import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.errors import ConfigError, HowdahError, PermissionDenied, render
from howdah.storage import directories
from tests.runs.training_runs import ROOT

STRANGER = 54321
"""A user id that this machine does not know."""


def take(directory: str, mode: str = "0750") -> None:
    directories.take(directory, mode, key="run.directory", below=directories.BELOW)


def refused(directory: str) -> PermissionDenied:
    with pytest.raises(PermissionDenied) as caught:
        take(directory)
    assert "run.directory" in caught.value.remedy
    return caught.value


def give_away(path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory to another user")
    os.chown(path, STRANGER, STRANGER)


@pytest.mark.parametrize("mode", ["0700", "0750", "0755"])
def test_a_new_directory_has_its_mode_and_is_accepted_again(tmp_path, mode):
    run = tmp_path / "a" / "run"
    for _ in range(2):
        take(str(run), mode)
    assert run.stat().st_mode & 0o7777 == int(mode, 8)
    assert os.listdir(run) == []
    take(str(run), "0700")
    assert run.stat().st_mode & 0o7777 == int(mode, 8)  # one that is there keeps its own


@pytest.mark.parametrize("below", ["", "job", "job/requests", "attempts", "checkpoints"])
def test_a_directory_of_another_user_is_refused(tmp_path, below):
    place = tmp_path / "run" / below
    place.mkdir(parents=True)
    give_away(place)
    error = refused(str(tmp_path / "run"))
    assert "belongs to another user" in error.what and error.where == str(place).rstrip("/")
    assert f"owner {STRANGER}" in error.got and "chown" in error.remedy
    assert not [name for name in os.listdir(tmp_path / "run") if name.startswith(".")]


def test_a_directory_that_all_users_may_write_to_is_refused(tmp_path):
    run = tmp_path / "run"
    (run / "attempts").mkdir(parents=True)
    run.chmod(0o777)
    assert "chmod" in refused(str(run)).remedy
    run.chmod(0o1777)
    refused(str(run))
    run.chmod(0o755)
    (run / "attempts").chmod(0o777)
    assert refused(str(run)).where == str(run / "attempts")
    run.chmod(0o750)  # only the group may enter it
    take(str(run))
    (run / "attempts").chmod(0o775)
    run.chmod(0o775)  # write access by the group is up to the owner
    take(str(run))


def test_storages_without_owners_are_not_checked():
    directory = f"memory://owners-{os.getpid()}/run"
    take(directory)
    assert storage.list_dir(directory) == []


def test_howdah_train_leaves_a_foreign_directory_as_it_is(tmp_path, tiny_dataset):
    run = tmp_path / "run"
    run.mkdir()
    give_away(run)
    for words in (["-m", "howdah.cli", "train"], ["-m", "howdah.training"]):
        config = tmp_path / "given.yaml"
        config.write_text(f"run: {{directory: {run}}}\ndata: {{dataset: {tiny_dataset.path}}}\n")
        done = subprocess.run(
            [sys.executable, *words, "--config", str(config)],
            cwd=ROOT, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == PermissionDenied.exit_code, done.stderr
        assert "belongs to another user" in done.stderr and "Traceback" not in done.stderr
        assert os.listdir(run) == []


def test_howdah_submit_refuses_each_of_them(tmp_path):
    from howdah.yarn.preflight import preflight

    places = {name: tmp_path / name for name in ("run", "checkpoints", "staging")}
    sections = {"run": "run", "checkpoint": "checkpoints"}
    config = from_dict(
        {section: {"directory": str(places[name])} for section, name in sections.items()}
        | {"yarn": {"staging": str(places["staging"])}}
    )
    preflight._directories(config)
    for name in sections.values():
        assert places[name].stat().st_mode & 0o777 == 0o750
        give_away(places[name])
    with pytest.raises(HowdahError) as caught:
        preflight._directories(config)
    text = render(caught.value)
    assert "run.directory" in text and "checkpoint.directory" in text and "chown" in text


@pytest.mark.hadoop
@pytest.mark.parametrize("web", [False, True])
def test_on_hdfs_too(cluster, hdfs_dir, monkeypatch, web):
    directory = f"{hdfs_dir}/runs-{web}"
    shared = f"{directory}/shared".removeprefix(cluster.hdfs_url)
    if web:
        directory = cluster.webhdfs_url + directory.removeprefix(cluster.hdfs_url)
    take(f"{directory}/mine")
    assert storage.entry(f"{directory}/mine").mode == 0o750
    assert storage.entry(directory).mode == 0o755
    cluster.make_dir(shared)  # as /tmp is

    with monkeypatch.context() as patch:
        patch.setenv("HADOOP_USER_NAME", "mallory")
        with pytest.raises(PermissionDenied):
            storage.list_dir(f"{directory}/mine")
        storage.make_dirs(f"{directory}/shared/run/job/requests", mode=0o700)
        for place in ("run", "run/job"):
            assert storage.entry(f"{directory}/shared/{place}").owner == "mallory"
    with pytest.raises(PermissionDenied) as caught:
        take(f"{directory}/shared/run")
    error = render(caught.value)
    assert "mallory" in error


# ---------------------------------------------------------------------------------- the key
@pytest.mark.parametrize("spelling", ["0750", "750", "0o750", 0o750, 750, " 0750 "])
def test_every_spelling_of_a_mode_is_accepted(spelling):
    assert from_dict({"run": {"mode": spelling}}).run.mode == "0750"


@pytest.mark.parametrize(
    "mode",
    ["0777", 0o777, "0757", "0640", "640", "2750", "rwxr-x---", "", True, None, 0, 7.5, 500],
)
def test_invalid_modes_and_write_access_for_all_are_refused(mode):
    with pytest.raises(ConfigError, match="mode is one of"):
        from_dict({"run": {"mode": mode}})
