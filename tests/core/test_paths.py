"""Paths at the root of a storage, whose URL may have no authority."""

import pytest

from howdah.core import paths


@pytest.mark.parametrize(
    ("path", "parent"),
    [
        ("hdfs:///x", "hdfs:///"),
        ("hdfs:///x/", "hdfs:///"),
        ("hdfs:///", "hdfs:///"),
        ("hdfs:///x/y", "hdfs:///x"),
        ("hdfs://nn", "hdfs://nn/"),
        ("hdfs://nn/", "hdfs://nn/"),
        ("file:///x", "file:///"),
        ("/x", "/"),
        ("/", "/"),
        ("x", "."),
    ],
)
def test_a_parent_stays_on_its_storage(path, parent):
    assert paths.parent(path) == parent
    assert paths.scheme(paths.parent(path)) == paths.scheme(path)
    assert paths.scheme(paths.temp_beside(path)) == paths.scheme(path)


@pytest.mark.parametrize(
    ("base", "joined"),
    [("hdfs:///", "hdfs:///a/b"), ("hdfs://nn/", "hdfs://nn/a/b"), ("file:///", "file:///a/b"),
     ("/", "/a/b"), ("d/", "d/a/b")],
)  # fmt: skip
def test_a_name_is_joined_to_a_root(base, joined):
    assert paths.join(base, "a", "b") == joined


@pytest.mark.parametrize("path", ["/data/x", "file:///data/x", "FILE:/data/x", "file:/data/x"])
def test_a_local_path_may_be_a_uri_as_java_writes_it(path):
    assert paths.is_local(path)
    assert paths.local_path(path) == "/data/x"


@pytest.mark.parametrize("path", ["~/x", "file://~/x"])
def test_a_local_path_may_begin_at_home(path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/ann")
    assert paths.local_path(path) == "/home/ann/x"
