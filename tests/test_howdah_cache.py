"""Where local caches lie: one answer for every part of Howdah, the set-up tools included."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from howdah import cache, package
from howdah.doctor_checks import check_disk
from training import shardcache

ROOT = Path(__file__).resolve().parent.parent


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


def test_all_parts_keep_theirs_below_it(tmp_path, monkeypatch):
    monkeypatch.delenv("HOWDAH_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    root = str(tmp_path / "howdah")
    assert package.cache_directory() == f"{root}/packages"
    assert shardcache.default_directory() == f"{root}/shards"
    assert check_disk(os.environ).status != "fail"
    code = "import sys; sys.path.insert(0, 'tools'); import toolkit; print(toolkit.cache_root())"
    # As set-up runs it: nothing installed but Python.
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout.strip() == root, done.stderr
