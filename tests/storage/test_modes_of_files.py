"""Files with people's texts: no command leaves one that more users may read than run.mode says."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.storage.base import UMASK, closed_bits
from tests import ROOT
from tests.runs.finished_runs import finished_run


@pytest.fixture
def fresh_umask(monkeypatch):
    """The umask of most machines, as a new process has it."""
    monkeypatch.setattr(storage, "_umask", [])
    monkeypatch.delenv(UMASK, raising=False)
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_whatever_writes_is_bounded_and_a_later_configuration_decides_anew(tmp_path, fresh_umask):
    storage.configure(mode=0o750)
    storage.write_whole(str(tmp_path / "whole"), b"x")
    storage.make_dirs(str(tmp_path / "below" / "deeper"))
    (tmp_path / "by-hand").write_text("x")
    child = f"open({str(tmp_path / 'by-child')!r}, 'w').close()"
    subprocess.run([sys.executable, "-c", child], check=True)
    for name in ("whole", "by-hand", "by-child"):
        assert mode(tmp_path / name) == 0o640
    assert mode(tmp_path / "below") == mode(tmp_path / "below" / "deeper") == 0o750
    assert closed_bits() == 0o027  # for HDFS, whose clients do not ask the process's umask
    storage.configure(mode=0o755)
    (tmp_path / "open").write_text("x")
    assert mode(tmp_path / "open") == 0o644
    storage.configure()
    (tmp_path / "as-before").write_text("x")
    assert mode(tmp_path / "as-before") == 0o644


def test_a_stricter_umask_holds(tmp_path, fresh_umask):
    os.umask(0o077)
    storage.configure(mode=0o755)
    (tmp_path / "mine").write_text("x")
    assert mode(tmp_path / "mine") == 0o600


def test_the_bits_are_those_of_runs_and_datasets():
    assert from_dict({}).most_open == 0o750
    assert from_dict({"run": {"mode": "0755"}}).most_open == 0o755
    assert from_dict({"run": {"mode": "0700"}}).most_open == 0o700


def test_predictions_and_published_models_are_not_for_everybody(tmp_path, tiny_model_dir):
    finished_run(str(tmp_path / "run"), tiny_model_dir, run_id="run-1")
    (tmp_path / "rows.csv").write_text("text\nthe cat\na dog\n")
    common = ["--set", f"publish.directory={tmp_path}/models", "--set", "publish.name=zoo"]
    for words in (
        ["publish", "--set", f"run.directory={tmp_path}/run", *common],
        ["predict", "--model", f"{tmp_path}/models/zoo", "--source", f"{tmp_path}/rows.csv",
         "--text-column", "text", "--output", f"{tmp_path}/out.csv"],
    ):  # fmt: skip
        done = subprocess.run(
            ["sh", "-c", 'umask 022; exec "$@"', "sh", sys.executable, "-m", "howdah.cli", *words],
            capture_output=True, text=True, cwd=ROOT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    written = [tmp_path / "out.csv", *Path(tmp_path / "models").rglob("*")]
    assert len(written) > 8
    for path in written:
        assert not mode(path) & 0o027, f"{path}: {mode(path):04o}"
