"""The cache directory is the same for every part of Howdah, including the set-up tools."""

import os
import subprocess
import sys

import pytest

from howdah.core import cache
from howdah.data.splits import shard_cache
from howdah.doctor.checks import check_disk
from howdah.packaging import package
from tests import ROOT


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({"HOWDAH_CACHE": "/a/b", "XDG_CACHE_HOME": "/x"}, "/a/b"),
        ({"HOWDAH_CACHE": "", "XDG_CACHE_HOME": "/x"}, "/x/howdah"),
        ({"HOWDAH_CACHE": "~/mine"}, "{home}/mine"),
        ({"HOWDAH_CACHE": "here"}, "{here}/here"),
        ({"XDG_CACHE_HOME": "not/absolute"}, "{home}/.cache/howdah"),
        ({}, "{home}/.cache/howdah"),
    ],
)
def test_the_first_that_is_set_decides(env, expected):
    home = os.path.expanduser("~")
    assert cache.cache_root(env) == expected.format(home=home, here=os.getcwd())


def test_all_caches_are_below_the_cache_root(tmp_path, monkeypatch):
    monkeypatch.delenv("HOWDAH_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    root = str(tmp_path / "howdah")
    assert package.cache_directory() == f"{root}/packages"
    assert shard_cache.default_directory() == f"{root}/shards"
    assert check_disk(os.environ).status != "fail"
    code = "import sys; sys.path.insert(0, 'tools'); import toolkit; print(toolkit.cache_root())"
    # As set-up runs it: nothing installed but Python.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.strip() == root, done.stderr
