"""The staging directory: only its owner writes there, and each file has the bytes of its note."""

import hashlib
import json
import os
import stat
from pathlib import Path

import pytest

from howdah import storage
from howdah.config import loader as config_module
from howdah.errors import ConfigError
from howdah.packaging import package, staging
from howdah.yarn import shipping

NOBODY = 65534


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.fixture
def secret_file(tmp_path):
    """A user's file of mode 0600."""
    path = tmp_path / "token.txt"
    path.write_text("the secret of ada")
    path.chmod(0o600)
    return path


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "staging")


def test_the_directory_is_private_and_a_users_file_stays_so(place, secret_file):
    area = staging.ready(place, "yarn.staging")
    assert (mode(place), mode(area.packages)) == (0o711, 0o700)
    url = area.put(package.of_file(str(secret_file)))
    assert mode(url) == 0o600
    wheel = area.put(package.wheel())
    assert mode(wheel) == 0o644
    assert {mode(os.path.join(area.packages, name)) for name in os.listdir(area.packages)
            if name.endswith(".sha256")} == {0o600}  # fmt: skip
    assert sorted(os.listdir(place)) == ["packages"]  # no probe stays


def test_a_submission_ships_its_files_privately(place, secret_file, monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "ada")
    config = config_module.from_dict(
        {"yarn": {"staging": f"file://{place}", "files": [str(secret_file)],
                  "python": "/usr/bin/python3"}}
    )  # fmt: skip
    shipment, packages = shipping.plan(config, print)
    shipping.upload(config, packages, print)
    shipped = storage.local_path(shipment.files["token.txt"].url)
    assert Path(shipped).read_text() == "the secret of ada"
    assert mode(shipped) == 0o600
    assert mode(os.path.dirname(shipped)) == 0o700


@pytest.mark.parametrize("wrong", [0o770, 0o707, 0o1777])
@pytest.mark.parametrize("part", ["", "packages"])
def test_a_directory_that_others_may_write_to_is_refused(place, part, wrong):
    staging.ready(place, "yarn.staging")
    os.chmod(os.path.join(place, part), wrong)
    with pytest.raises(ConfigError, match="other users may write") as caught:
        staging.ready(place, "yarn.staging")
    assert "yarn.staging" in caught.value.where and "chmod 700" in caught.value.remedy


def test_packages_that_others_may_read_become_private(place):
    os.makedirs(os.path.join(place, "packages"), 0o755)
    assert mode(staging.ready(place, "x").packages) == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a directory to another user")
@pytest.mark.parametrize("part", ["", "packages"])
def test_a_directory_of_another_user_is_refused(place, part):
    staging.ready(place, "yarn.staging")
    os.chown(os.path.join(place, part), NOBODY, NOBODY)
    with pytest.raises(ConfigError, match="another user owns") as caught:
        staging.ready(place, "yarn.staging")
    assert "nobody" in caught.value.got


def _planted(area, item, data):
    """A file of the package's name and size, as a stranger would put it there."""
    target = os.path.join(area.packages, item.name)
    with open(target, "wb") as file:
        file.write(data)
    assert os.path.getsize(target) == item.size
    return target


def test_a_file_with_the_same_name_and_size_but_other_bytes_is_replaced(place, secret_file):
    area = staging.ready(place, "x")
    item = package.of_file(str(secret_file))
    target = _planted(area, item, b"X" * item.size)
    lines = []
    assert area.put(item, lines.append) == target
    assert Path(target).read_text() == "the secret of ada"
    assert len(lines) == 1


def test_a_changed_file_is_noticed_although_its_note_stands(place, secret_file):
    area = staging.ready(place, "x")
    item = package.of_file(str(secret_file))
    target = area.put(item)
    before = os.stat(target)
    _planted(area, item, b"X" * item.size)
    os.utime(target, ns=(before.st_atime_ns, before.st_mtime_ns + 1_000_000))
    area.put(item)
    assert Path(target).read_text() == "the secret of ada"


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives a file to another user")
def test_a_file_and_note_of_another_user_are_replaced(place, secret_file):
    """Planted while the directory was open, with a note that fits: still not ours."""
    area = staging.ready(place, "x")
    item = package.of_file(str(secret_file))
    target = _planted(area, item, b"X" * item.size)
    facts = {"sha256": package.sha256(item.path), "bytes": item.size,
             "modified": os.stat(target).st_mtime}  # fmt: skip
    with open(f"{target}.sha256", "w") as note:
        json.dump(facts, note)
    for path in (target, f"{target}.sha256"):
        os.chown(path, NOBODY, NOBODY)
    area.put(item)
    assert Path(target).read_text() == "the secret of ada"
    assert os.stat(target).st_uid == os.getuid()


def test_a_whole_file_without_a_note_stays_as_it_is(place, secret_file):
    """YARN may have pinned the time of one that is being uploaded at this moment."""
    area = staging.ready(place, "x")
    item = package.of_file(str(secret_file))
    target = area.put(item)
    os.remove(f"{target}.sha256")
    before = os.stat(target)
    lines = []
    area.put(item, lines.append)
    assert lines == []
    assert os.stat(target).st_ino == before.st_ino
    digest = hashlib.sha256(b"the secret of ada").hexdigest()
    assert storage.read_json(f"{target}.sha256")["sha256"] == digest


def test_storage_without_owners_is_taken_as_it_is(secret_file, tmp_path):
    area = staging.ready(f"memory://{tmp_path.name}/staging", "x")
    assert area.owner is None
    url = area.put(package.of_file(str(secret_file)))
    assert storage.read_bytes(url) == b"the secret of ada"
    lines = []
    area.put(package.of_file(str(secret_file)), lines.append)
    assert lines == []
