"""Jars from Maven: held to their hash, fetched once, with a way out where there is no network."""

import hashlib
import os

import pytest

from howdah.errors import ClusterError, StorageError
from howdah.packaging import maven
from howdah.packaging.maven import Jar

BYTES = b"classes"
JAR = Jar("org.x", "thing", "1.0", hashlib.sha256(BYTES).hexdigest())


@pytest.fixture
def fetched(tmp_path, monkeypatch):
    """Fetches JAR with an mvn that puts a file with these bytes there; the directory of jars."""
    monkeypatch.setenv("HOWDAH_CACHE", str(tmp_path / "cache"))
    mvn = tmp_path / "bin" / "mvn"
    mvn.parent.mkdir()
    monkeypatch.setenv("PATH", f"{mvn.parent}:/usr/bin:/bin")

    def fetch(text):
        mvn.write_text(
            "#!/bin/sh\n"
            'for word; do case "$word" in -DoutputDirectory=*) out=${word#*=};; esac; done\n' + text
        )
        mvn.chmod(0o755)
        return maven.fetch([JAR], "the jars of a test", lambda line: None)

    return fetch


def test_a_cache_that_cannot_be_written_is_a_storage_error(monkeypatch):
    monkeypatch.setenv("HOWDAH_CACHE", "/proc/none")
    with pytest.raises(StorageError) as caught:
        maven.fetch([JAR], "the jars of a test", lambda line: None)
    assert caught.value.where == "/proc/none/jars"


def test_a_jar_is_fetched_once_and_again_where_it_was_damaged(tmp_path, fetched):
    calls = tmp_path / "calls"
    right = f'echo call >> {calls}; mkdir "$out"; printf classes > "$out/thing-1.0.jar"'
    (path,) = fetched(right)
    assert fetched(right) == [path] and calls.read_text() == "call\n"
    with open(path, "wb") as file:
        file.write(b"cut")
    assert fetched(right) == [path] and calls.read_text() == "call\ncall\n"
    with open(path, "rb") as file:
        assert file.read() == BYTES
    assert os.listdir(os.path.dirname(path)) == ["thing-1.0.jar"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('mkdir "$out"; printf other > "$out/thing-1.0.jar"', "not the one"),
        ("exit 0", "not the one"),
        ("echo '[ERROR] Network is unreachable'; exit 1", "could not be fetched"),
    ],
)
def test_another_jar_is_refused_and_nothing_is_kept(tmp_path, fetched, text, sentence):
    with pytest.raises(ClusterError, match=sentence) as caught:
        fetched(text)
    assert os.listdir(tmp_path / "cache" / "jars") == []
    assert caught.value.remedy


def test_without_a_network_the_remedy_names_the_place_for_the_file(tmp_path, fetched):
    with pytest.raises(ClusterError) as caught:
        fetched("exit 1")
    assert str(tmp_path / "cache" / "jars") in caught.value.remedy
    jars = tmp_path / "cache" / "jars"
    (jars / "thing-1.0.jar").write_bytes(BYTES)
    assert fetched("exit 1") == [str(jars / "thing-1.0.jar")]
