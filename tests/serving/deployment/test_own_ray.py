"""The Ray that `howdah serve --on ray` starts: what other users of the machine can reach of it."""

import json
import os
import stat
import subprocess
import sys

import pytest

from howdah.errors import PermissionDenied
from howdah.ray_home import RayHome
from tests import ROOT

SCRIPT = """
import json, os, stat
from howdah.serving.deployment.own_ray import own_ray

with own_ray(1):
    token = os.environ["RAY_AUTH_TOKEN_PATH"]
    root = os.path.dirname(token)
    modes = {name: stat.S_IMODE(os.lstat(os.path.join(root, name)).st_mode)
             for name in ("", *os.listdir(root))}
print(json.dumps({"root": root, "modes": modes}))
"""


@pytest.mark.mpi
def test_ray_opens_its_own_directory_and_not_the_one_with_the_token(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=180,
        env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["modes"][""] == 0o700 and report["modes"]["token"] == 0o600
    assert report["modes"]["r"] & 0o077  # what Ray does to its `_temp_dir`
    assert not os.path.exists(report["root"])


def test_a_directory_that_was_opened_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", "/tmp")
    home = RayHome.make()
    try:
        home.require_private()
        assert stat.S_IMODE(os.stat(home.token).st_mode) == 0o600
        os.chmod(home.root, 0o777)
        with pytest.raises(PermissionDenied, match="0777"):
            home.require_private()
    finally:
        import shutil

        shutil.rmtree(home.root)
