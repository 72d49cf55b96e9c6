"""The archive of Spark's classes: made once, used afterwards, and never in the way."""

import os
import shlex
import subprocess

import pytest

from howdah.spark import classes


@pytest.fixture
def java(tmp_path):
    """A Java's path, beside the file that says what it is; nothing runs it."""
    program = tmp_path / "jdk" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.touch()
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="17.0.15"\n')
    return program


def test_it_is_made_once_for_a_java_and_jars(tmp_path, java, monkeypatch):
    monkeypatch.setenv("HOWDAH_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "a.jar").write_bytes(b"one")

    def options() -> tuple[str, str]:
        """(the option that names the archive, its path)"""
        words = classes.options(str(tmp_path / "spark"), str(java)).split()
        (word,) = [w for w in words if "=/" in w]
        return tuple(word.removeprefix("-XX:").split("="))

    how, path = options()
    assert how == "ArchiveClassesAtExit"
    with open(path, "wb") as file:
        file.write(b"\0" * 64)  # a JVM that was killed while it wrote
    assert options() == (how, path) and not os.path.exists(path)
    with open(path, "wb") as file:
        file.write(b"\xa8\xab\x0b\xf0" + b"\0" * 60)
    assert options() == ("SharedArchiveFile", path)
    (jars / "b.jar").write_bytes(b"two")
    how, other = options()
    assert how == "ArchiveClassesAtExit" and other != path and not os.path.exists(path)
    (java.parent.parent / "release").write_text('JAVA_VERSION="11.0.2"\n')
    assert classes.options(str(tmp_path / "spark"), str(java)) == classes.SHORT_JVM
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-XX:SharedArchiveFile=/mine.jsa")
    (java.parent.parent / "release").write_text('JAVA_VERSION="17.0.2"\n')
    assert classes.options(str(tmp_path / "spark"), str(java)) == classes.SHORT_JVM


def test_a_cache_that_cannot_be_written_costs_only_time(tmp_path, java, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOWDAH_CACHE", str(tmp_path / "file"))
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    assert classes.options(str(tmp_path / "spark"), str(java)) == classes.SHORT_JVM


def test_java_starts_silently_with_a_broken_archive(tmp_path, monkeypatch):
    from howdah.config.data import SparkOptions
    from howdah.spark.session import require_java
    from howdah.spark.shipping import spark_home

    monkeypatch.setenv("HOWDAH_CACHE", str(tmp_path))
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    home = spark_home(SparkOptions())
    java = require_java(home)
    path = classes._path(home, java)
    os.makedirs(os.path.dirname(path))
    with open(path, "wb") as file:
        file.write(b"\xa8\xab\x0b\xf0 no archive")
    options = classes.options(home, java).split()
    assert f"-XX:SharedArchiveFile={path}" in options
    done = subprocess.run([java, *options, "-version"], capture_output=True, text=True, check=True)
    assert done.stderr.startswith("openjdk version") and len(done.stderr.splitlines()) == 3


def test_a_cache_whose_path_has_a_blank_is_one_option(tmp_path, java, monkeypatch):
    """Spark divides a JVM's options as a shell does."""
    monkeypatch.setenv("HOWDAH_CACHE", str(tmp_path / "my cache"))
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    (tmp_path / "spark" / "jars").mkdir(parents=True)
    words = shlex.split(classes.options(str(tmp_path / "spark"), str(java)))
    (path,) = [word.partition("=")[2] for word in words if "=/" in word]
    assert path.startswith(str(tmp_path / "my cache"))
    with open(path, "wb") as file:
        file.write(b"\xa8\xab\x0b\xf0")
    words = shlex.split(classes.options(str(tmp_path / "spark"), str(java)))
    assert f"-XX:SharedArchiveFile={path}" in words
