"""The ETL on a Kerberised cluster: a keytab, no ticket, acting for another, the end of tokens."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from howdah import storage
from howdah.data.manifest import load_dataset
from howdah.hadoop import tokens
from tests.fixtures.cluster import fresh_dir, running
from tests.fixtures.etl_yarn import YarnEtl, containers, wait_for, whole
from tests.support.hadoop.kerberos_users import become_alice, ticket

pytestmark = [pytest.mark.hadoop, pytest.mark.spark]


@pytest.fixture
def secure_etl(secure_cluster, secure_dir, tiny_model_dir, tmp_path, monkeypatch):
    """A YarnEtl on the secure cluster; this process is alice, its commands are who they say."""
    become_alice(secure_cluster, tmp_path, monkeypatch)
    made = YarnEtl(secure_cluster, secure_dir, tiny_model_dir, tmp_path)
    made.source = made.put_rows(40)
    return made


def _owner(etl, path):
    where = path.removeprefix(etl.cluster.hdfs_url)
    env = {**etl.cluster.env, **ticket(etl.cluster, etl.place, "alice", "asking")}
    done = etl.cluster.run("hdfs", "dfs", "-stat", "%u", where, env=env)
    return done.stdout.split()[-1]


@pytest.mark.full
@pytest.mark.parametrize("mode", ["cluster", "client"])
def test_a_keytab_is_all_it_takes(secure_etl, mode):
    cluster = secure_etl.cluster
    spark = {
        "deploy_mode": mode,
        "keytab": str(cluster.keytab("alice")),
        "principal": cluster.principal("alice"),
    }
    config = secure_etl.config(source=secure_etl.source, spark=spark)
    none = {"KRB5CCNAME": f"FILE:{secure_etl.place}/none", "KRB5_CLIENT_KTNAME": "/none"}
    code, answer, err = secure_etl.run(config, **none)
    assert code == 0, err
    assert sum(answer["rows"].values()) == 40
    assert load_dataset(answer["dataset"]).manifest.rows("train") == answer["rows"]["train"]
    assert _owner(secure_etl, storage.join(answer["dataset"], "manifest.json")) == "alice"
    assert "the tokens of the tasks that write end at" in err


def test_without_a_ticket_the_error_says_kinit(secure_etl):
    none = {"KRB5CCNAME": f"FILE:{secure_etl.place}/none", "KRB5_CLIENT_KTNAME": "/none"}
    config = secure_etl.config(source=secure_etl.source)
    code, answer, err = secure_etl.run(config, HOWDAH_STORAGE_RETRY_SECONDS="0", **none)
    assert code == 5 and answer["error"] == "NotAuthenticated", (answer, err)
    assert "kinit" in answer["remedy"] and "Traceback" not in err


def test_a_keytab_of_another_realm_is_named(secure_etl):
    spark = {"keytab": str(secure_etl.cluster.keytab("alice")), "principal": "nobody@NOWHERE"}
    config = secure_etl.config(source=secure_etl.source, spark=spark)
    code, answer, err = secure_etl.run(config)
    assert code == 5 and "no Kerberos ticket" in answer["what"], (answer, err)
    assert "klist -kt" in answer["remedy"]


def test_acting_for_another_is_refused_by_name(secure_etl):
    config = secure_etl.config(source=secure_etl.source)
    with open(config) as file:
        text = file.read().replace("  user: null\n", "  user: bob\n", 1)
    with open(config, "w") as file:
        file.write(text)
    env = ticket(secure_etl.cluster, secure_etl.place, "alice", "alice")
    code, answer, err = secure_etl.run(config, HOWDAH_STORAGE_RETRY_SECONDS="0", **env)
    assert code == 5, (answer, err)
    assert "act as another" in answer["what"] and "impersonate bob" in answer["got"]
    assert "proxyuser" in answer["remedy"] and "Traceback" not in err


@pytest.mark.full
@pytest.mark.parametrize("mode", ["cluster", "client"])
def test_the_proxied_user_owns_application_and_files(secure_etl, mode):
    cluster = secure_etl.cluster
    cluster.keytab("bob")  # the user must be there
    config = secure_etl.config(source=secure_etl.source, spark={"deploy_mode": mode})
    with open(config) as file:
        text = file.read().replace("  user: null\n", "  user: bob\n", 1)
    with open(config, "w") as file:
        file.write(text)
    superuser = cluster.plan.user  # who may impersonate
    env = ticket(secure_etl.cluster, secure_etl.place, superuser, "super")
    code, answer, err = secure_etl.run(config, **env)
    assert code == 0, err
    # The dataset is bob's alone: of others only the superuser may look at it.
    listed = cluster.run_as_superuser("hdfs", "dfs", "-ls", "-R", answer["dataset"]).stdout
    entries = [line.split() for line in listed.splitlines() if line[:1] in ("-", "d")]
    assert {owner for _, _, owner, *_ in entries} == {"bob"}
    names = {path.rpartition("/")[2] for *_, path in entries}
    assert "manifest.json" in names and any("tfrecord" in name for name in names)
    status = cluster.run(
        "yarn", "application", "-status", answer["application"], env={**cluster.env, **env}
    )
    assert "User : bob" in status.stdout


# ------------------------------------------------------------------ longer than the tokens live
RENEWED_SECONDS, GREATEST_SECONDS = 150, 300
"""How long a token lives that is not renewed, and how long with renewals. Python's storage opens
nothing with the last minute; the rest is what a busy machine may take to start a driver."""
ROWS, SHARDS = 4000, 400
STILL_SECONDS = 25
"""Much less than what is left of tokens when new ones come, as a task is on a cluster."""


@pytest.fixture(scope="module")
def short_lives(tmp_path_factory):
    """A secure cluster of its own, whose HDFS tokens live minutes."""
    lives = {"token_renew_seconds": RENEWED_SECONDS, "token_max_seconds": GREATEST_SECONDS}
    # A driver that a busy machine is slow to start is no dead one.
    extra = {"yarn-site": {"yarn.am.liveness-monitor.expiry-interval-ms": "600000"}}
    with running(None, tmp_path_factory, "short", secure=True, extra=extra, **lives) as cluster:
        yield cluster


def _pause(pids):
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)


def _resume(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _shards(etl):
    return {name for name in etl.left() if name.endswith(".tfrecord")}


def _slowly(etl, process, pids, ends):
    """Let some shards be written now and again, up to a time."""
    while time.time() < ends:
        since = time.time()
        wait_for(lambda since=since: time.time() > since + STILL_SECONDS, process)
        before = _shards(etl)
        _resume(pids)
        wait_for(lambda before=before: _shards(etl) - before, process)
        _pause(pids)


@pytest.mark.full
@pytest.mark.timeout(1800)  # it waits for the end of tokens
@pytest.mark.parametrize("mode", ["cluster", "client"])
def test_it_goes_on_beyond_the_greatest_life_of_its_tokens(
    short_lives, tiny_model_dir, tmp_path, monkeypatch, mode
):
    """Its executor stands still again and again while shards are written, until the tokens that it
    was started with and those that its first tasks had are dead; the NameNode forgets its
    connections. Never for a whole life: an executor's JVM gets its tokens from Spark's driver, and
    one that stood still for so long would read with dead ones, whatever Python does.
    """
    cluster = short_lives
    become_alice(cluster, tmp_path, monkeypatch)
    with fresh_dir(cluster) as directory:
        etl = YarnEtl(cluster, directory, tiny_model_dir, tmp_path)
        spark = {
            "deploy_mode": mode,
            "keytab": str(cluster.keytab("alice")),
            "principal": cluster.principal("alice"),
            "executor_cores": 1,
            "conf": {
                # new tokens at half of a token's life, not at three quarters: some seconds at
                # least are left here, as hours are on a cluster
                "spark.security.credentials.renewalRatio": "0.5",
                "spark.security.credentials.retryWait": "5s",
                "spark.network.timeout": "900s",  # an executor that stands still is not given up
            },
        }
        config = etl.config(source=etl.put_rows(ROWS), spark=spark, num_shards=SHARDS)
        none = {"KRB5CCNAME": f"FILE:{tmp_path}/none", "KRB5_CLIENT_KTNAME": "/none"}
        process, executors = etl.start(config, **none), []
        try:
            wait_for(lambda: _shards(etl), process, seconds=600)
            main = "YarnCoarseGrainedExecutorBackend"
            executors = wait_for(lambda: containers(cluster.directory, main), process)
            _pause(executors)
            ends = max(time.time() + RENEWED_SECONDS, *map(_tokens_end, executors))
            _slowly(etl, process, executors, ends)
            assert len(_shards(etl)) < SHARDS
            cluster.stop("namenode")
            cluster.start("namenode")
            cluster.wait_healthy()
            _resume(executors)
            code, answer, err = etl.finish(process, seconds=600)
        finally:
            _resume(executors)
            process.kill()
        assert code == 0, f"{answer}\n{err[-6000:]}"
        whole(answer["dataset"], ROWS)


def _tokens_end(pid):
    """When the tokens for HDFS that YARN gave a container can be renewed no longer."""
    held = tokens.parse(Path(f"/proc/{pid}/cwd/container_tokens").read_bytes())
    return max(token.expires for token in held if token.kind == tokens.HDFS_KIND)
