"""Training on a Kerberised cluster: keytab, expired ticket, the end of delegation tokens."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import types

import pytest

from howdah import storage
from howdah.errors import Terminated, TokensExpiring
from howdah.hadoop import tokens
from howdah.training.checkpoint.manager import Checkpoints
from howdah.training.process import token_expiry
from howdah.training.process.token_expiry import TokenExpiry
from tests.fixtures.dataset import build_dataset
from tests.runs.training_runs import ROOT, SETTINGS
from tests.runs.training_runs import _nested as nested

LIMIT = 250  # seconds; detects a hang


# ------------------------------------------------------------------------------ when they end
@pytest.fixture
def held(monkeypatch, tmp_path):
    """The tokens in the file: change the list, then call `changed`."""
    path = tmp_path / "tokens"
    path.write_bytes(b"")
    store = types.SimpleNamespace(tokens=[], path=path)
    monkeypatch.setenv(tokens.ENVIRONMENT, str(path))
    monkeypatch.delenv("KRB5_CLIENT_KTNAME", raising=False)
    monkeypatch.setattr(tokens, "load", lambda: store.tokens)
    monkeypatch.setattr(token_expiry, "_LOOK_SECONDS", 0.0)
    return store


def token(seconds: float, kind: str = tokens.HDFS_KIND):
    return types.SimpleNamespace(kind=kind, expires=time.time() + seconds)


def test_training_stops_a_margin_before_the_first_token_ends(held):
    held.tokens = [token(3600), token(100), token(1, "YARN_AM_RM_TOKEN")]
    assert not TokenExpiry(30.0).ending()
    assert TokenExpiry(45.0).ending()  # 45 s to save, 60 in which storage takes it no more
    error = TokenExpiry(45.0).error(where="run", got="the newest checkpoint is step-3")
    assert error.exit_code == 5
    assert "they expire at" in error.got and "step-3" in error.got


def test_a_file_of_tokens_that_is_half_written_does_not_end_training(held, monkeypatch):
    held.tokens = [token(100)]
    expiry = TokenExpiry(30.0)
    assert not expiry.ending() and expiry.end is not None
    monkeypatch.undo()
    monkeypatch.setenv(tokens.ENVIRONMENT, str(held.path))
    monkeypatch.setattr(token_expiry, "_LOOK_SECONDS", 0.0)
    held.path.write_bytes(b"HD")
    os.utime(held.path, ns=(1, 1))
    assert not expiry.ending() and expiry.end is not None


def test_new_tokens_in_the_same_file_count(held):
    held.tokens = [token(10)]
    life = TokenExpiry(30.0)
    assert life.ending()
    held.tokens = [token(3600)]
    os.utime(held.path, ns=(1, 1))
    assert not life.ending()


def test_who_has_a_keytab_or_no_tokens_is_not_stopped(held, monkeypatch):
    assert not TokenExpiry(30.0).ending()  # no token in the file
    held.tokens = [token(10)]
    monkeypatch.setenv("KRB5_CLIENT_KTNAME", "/somewhere.keytab")
    assert not TokenExpiry(30.0).ending()
    monkeypatch.delenv("KRB5_CLIENT_KTNAME")
    assert TokenExpiry(30.0).ending()
    monkeypatch.delenv(tokens.ENVIRONMENT)
    assert not TokenExpiry(30.0).ending()


def test_a_signal_stops_as_the_signal_although_tokens_expire(held, tmp_path):
    from tests.training.run.test_run import open_run

    held.tokens = [token(10)]
    run = open_run(str(tmp_path / "run"))
    assert run.stops.requested()
    assert isinstance(run.stop_error(), TokensExpiring)
    run.stops._note(15)
    assert isinstance(run.stop_error(), Terminated)
    run.close("interrupted")


# ------------------------------------------------------------------------- the secure cluster
class Place:
    """A dataset and a base model on a secure HDFS, and trainings from it."""

    def __init__(self, cluster, top: str, tmp_path, model_dir: str) -> None:
        self.cluster, self.top, self.tmp_path = cluster, top, tmp_path
        self.model_dir = model_dir

    def fill(self) -> None:
        build_dataset(f"{self.top}/data/v=0", model_dir=self.model_dir)
        for name in os.listdir(self.model_dir):
            storage.upload(os.path.join(self.model_dir, name), f"{self.top}/base/{name}")

    def start(self, env: dict[str, str], **settings) -> subprocess.Popen:
        values = SETTINGS | {
            "run.directory": f"{self.top}/run",
            "data.dataset": f"{self.top}/data",
            "model.base": f"{self.top}/base",
            "training.framework": "torch",
            "training.shard_cache_directory": str(self.tmp_path / "cache"),
        } | settings  # fmt: skip
        config = str(self.tmp_path / "given.yaml")
        with open(config, "w", encoding="utf-8") as file:
            json.dump(nested(values), file)
        everything = self.cluster.env | {"PYTHONPATH": ROOT, "CUDA_VISIBLE_DEVICES": ""} | env
        return subprocess.Popen(
            [sys.executable, "-m", "howdah.cli", "train", "--config", config],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={key: value for key, value in everything.items() if value},
        )  # fmt: skip

    def train(self, env: dict[str, str], **settings) -> tuple[int, str]:
        """Exit code and output."""
        job = self.start(env, **settings)
        try:
            return self.end(job)
        finally:
            job.kill()

    @staticmethod
    def end(job: subprocess.Popen) -> tuple[int, str]:
        output, _ = job.communicate(timeout=LIMIT)
        return job.returncode, output


def log_in(monkeypatch, cluster, user: str) -> dict[str, str]:
    """This process asks as `user`, by keytab; what a child needs for the same."""
    keytab = {"KRB5_CLIENT_KTNAME": str(cluster.keytab(user))}
    for key, value in (cluster.exports() | keytab).items():
        if key != "PATH":
            monkeypatch.setenv(key, value)
    return keytab


@pytest.mark.hadoop
def test_a_keytab_is_enough_and_the_files_are_its_user_s(
    secure_cluster, secure_dir, tmp_path, tiny_model_dir, monkeypatch
):
    keytab = log_in(monkeypatch, secure_cluster, "alice")
    place = Place(secure_cluster, secure_dir, tmp_path, tiny_model_dir)
    place.fill()
    code, output = place.train(keytab)
    assert code == 0, output
    assert storage.read_json(f"{secure_dir}/run/run.json")["status"] == "finished"
    assert Checkpoints(f"{secure_dir}/run/checkpoints").latest().step == 10
    inner = secure_dir.removeprefix(secure_cluster.hdfs_url)
    done = secure_cluster.run_as_superuser(
        "hdfs", "dfs", "-stat", "%u", f"{inner}/run/export", f"{inner}/run/checkpoints/step-10"
    )
    assert done.stdout.split() == ["alice", "alice"]


@pytest.mark.hadoop
@pytest.mark.full
def test_an_expired_ticket_is_one_clear_error(
    secure_cluster, secure_dir, tmp_path, tiny_model_dir, monkeypatch
):
    cache = {"KRB5CCNAME": f"FILE:{tmp_path / 'tickets'}", "KRB5_CLIENT_KTNAME": ""}
    keytab = secure_cluster.keytab("alice")
    who = secure_cluster.principal("alice")
    secure_cluster.run("kinit", "-l", "3s", "-kt", str(keytab), who, env=cache)
    deadline = time.monotonic() + LIMIT
    while secure_cluster.run("klist", "-s", env=cache, check=False).returncode == 0:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    place = Place(secure_cluster, secure_dir, tmp_path, tiny_model_dir)
    code, output = place.train(cache)
    assert code == 5, output
    assert "kinit" in output and "Kerberos" in output
    assert "Traceback" not in output


@pytest.mark.hadoop
@pytest.mark.full
def test_at_the_end_of_its_tokens_a_run_saves_and_stops_and_goes_on_with_new_ones(
    tmp_path, tiny_model_dir, monkeypatch
):
    """The tokens live 150 s at most; training stops 65 s before that."""
    from tools.minicluster import MiniCluster

    cluster = MiniCluster(tmp_path / "cluster")
    cluster.start(secure=True, token_max_seconds=150, token_renew_seconds=150)
    try:
        log_in(monkeypatch, cluster, "alice")
        cluster.make_dir("/t")
        place = Place(cluster, f"{cluster.hdfs_url}/t", tmp_path, tiny_model_dir)
        place.fill()
        endless = {"training.max_steps": 1_000_000, "checkpoint.every_epoch": False,
                   "checkpoint.every_steps": None, "evaluation.every_steps": 1_000_000,
                   "checkpoint.grace_seconds": 5.0}  # fmt: skip
        code, output = place.train(tokens_alone(cluster, tmp_path / "first"), **endless)
        assert code == 5, output
        assert "the delegation tokens are about to expire" in output
        failure = storage.read_json(f"{place.top}/run/logs/failure.0.json")
        assert failure["error"]["error"] == "TokensExpiring"  # by which to start it again
        assert "Traceback" not in output
        saved = Checkpoints(f"{place.top}/run/checkpoints").latest().step
        assert f"the newest checkpoint is step-{saved}" in output
        assert storage.read_json(f"{place.top}/run/run.json")["status"] == "interrupted"
        endless["training.max_steps"] = saved + 3
        code, output = place.train(tokens_alone(cluster, tmp_path / "second"), **endless)
        assert code == 0, output
        assert f"resuming from checkpoint step-{saved}" in output
    finally:
        cluster.stop(remove=True)


def tokens_alone(cluster, path) -> dict[str, str]:
    """The environment of a container: a file of new tokens, no ticket and no keytab."""
    cache = {"KRB5CCNAME": f"FILE:{path}.tickets"}
    who = cluster.principal("alice")
    cluster.run("kinit", "-kt", str(cluster.keytab("alice")), who, env=cache)
    cluster.run("hdfs", "fetchdt", "--renewer", "alice", str(path), env=cache)
    assert re.search("HDFS_DELEGATION_TOKEN", path.read_bytes().decode("latin-1"))
    empty = f"FILE:{path}.none"
    return {tokens.ENVIRONMENT: str(path), "KRB5CCNAME": empty, "KRB5_CLIENT_KTNAME": ""}
