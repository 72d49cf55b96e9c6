"""The mini cluster with Kerberos: who has a ticket may, who has none may not."""

import subprocess
import sys

import pytest

from tests.runs.jobs import yarn_applications
from tools.minicluster.variants import web

pytestmark = pytest.mark.hadoop


@pytest.fixture
def ticket(secure_cluster, tmp_path):
    """Makes an environment with a ticket of a user, in a cache of its own; `life` in seconds."""

    def make(user: str, life: int = 3600) -> dict[str, str]:
        env = {"KRB5CCNAME": f"FILE:{tmp_path / user}"}
        keytab, principal = secure_cluster.keytab(user), secure_cluster.principal(user)
        secure_cluster.run("kinit", "-l", f"{life}s", "-kt", keytab, principal, env=env)
        return env

    return make


def test_a_keytab_opens_hdfs_and_nothing_else_does(secure_cluster, secure_dir, ticket, tmp_path):
    cluster = secure_cluster
    (tmp_path / "file").write_text("text\n")
    alice = ticket("alice")
    cluster.run("hdfs", "dfs", "-put", str(tmp_path / "file"), secure_dir, env=alice)
    listed = cluster.run("hdfs", "dfs", "-ls", secure_dir, env=alice).stdout
    assert " alice " in listed
    none = {"KRB5CCNAME": f"FILE:{tmp_path / 'none'}", "HADOOP_USER_NAME": "alice"}
    refused = cluster.run("hdfs", "dfs", "-ls", secure_dir, env=none, check=False)
    assert refused.returncode == 1
    assert "Client cannot authenticate via:[TOKEN, KERBEROS]" in refused.stderr
    bob = ticket("bob")
    refused = cluster.run(
        "hdfs", "dfs", "-chmod", "600", f"{secure_dir}/file", env=bob, check=False
    )
    assert "Permission denied" in refused.stderr


def test_web_and_data_ask_for_kerberos_too(secure_cluster, secure_dir, ticket):
    cluster = secure_cluster
    for port in ("namenode-http", "resourcemanager-http", "historyserver-http"):
        connection = web.connection(cluster.plan, port)
        connection.request("GET", "/webhdfs/v1/?op=LISTSTATUS&user.name=root")
        answer = connection.getresponse()
        assert answer.status == 401, port
        assert answer.getheader("WWW-Authenticate") == "Negotiate"
        connection.close()
    listed = cluster.run("hdfs", "dfs", "-ls", cluster.webhdfs_url + "/test", env=ticket("alice"))
    assert secure_dir.rpartition("/")[2] in listed.stdout


def test_yarn_asks_for_a_ticket(secure_cluster, ticket):
    cluster = secure_cluster
    output = cluster.run("yarn", "application", "-list", env=ticket("alice")).stdout
    assert "Total number of applications" in output
    # Without one the client goes on asking for a quarter of an hour: its log says why.
    waiting = subprocess.Popen(
        ["yarn", "application", "-list"],
        env={**cluster.env, "KRB5CCNAME": "FILE:/nonexistent/ticket"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        output = next(line for line in waiting.stdout if "cannot authenticate via" in line)
        assert "[TOKEN, KERBEROS]" in output
    finally:
        waiting.kill()
        waiting.communicate()


def test_the_superuser_may_act_for_another_and_others_may_not(secure_cluster, secure_dir, ticket):
    cluster = secure_cluster
    as_carol = {**ticket(cluster.plan.user), "HADOOP_PROXY_USER": "carol"}
    cluster.run("hdfs", "dfs", "-mkdir", f"{secure_dir}/hers", env=as_carol)
    alice = ticket("alice")
    assert " carol " in cluster.run("hdfs", "dfs", "-ls", secure_dir, env=alice).stdout
    refused = cluster.run(
        "hdfs", "dfs", "-ls", "/", env={**alice, "HADOOP_PROXY_USER": "carol"}, check=False
    )
    assert "is not allowed to impersonate carol" in refused.stderr


@pytest.mark.full  # what is set for Hadoop's daemons
def test_a_token_lives_as_long_as_its_settings_say(secure_cluster, ticket, tmp_path):
    cluster = secure_cluster
    lives = {
        "dfs.namenode.delegation.token.renew-interval": "3000",
        "dfs.namenode.delegation.token.max-lifetime": "6000",
    }
    cluster.reconfigure("namenode", {"hdfs-site": lives})
    token = tmp_path / "token"
    env = ticket("alice")
    cluster.run("hdfs", "fetchdt", "--renewer", "alice", str(token), env=env)
    only_token = {
        "KRB5CCNAME": f"FILE:{tmp_path / 'none'}", "HADOOP_TOKEN_FILE_LOCATION": str(token)
    }  # fmt: skip

    def listing() -> subprocess.CompletedProcess:
        return cluster.run("hdfs", "dfs", "-ls", "/test", env=only_token, check=False)

    yarn_applications.wait_for(lambda: listing().returncode != 0, lambda: "the token still works")
    assert "expired" in listing().stderr or "can't be found in cache" in listing().stderr
    cluster.restore()
    cluster.run("hdfs", "fetchdt", "--renewer", "alice", str(token), env=env)
    assert listing().returncode == 0


TABLE_WORKER = """
import sys
from pyspark.sql import SparkSession

session = (
    SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "512m").enableHiveSupport().getOrCreate()
)
session.sql("drop database if exists made cascade")
session.sql(f"create database made location '{sys.argv[1]}/made.db'")
session.sql("create table made.t as select id from range(3)")
print("rows", session.table("made.t").count())
session.sql("drop database made cascade")
session.stop()
"""


@pytest.mark.full
def test_the_metastore_asks_for_a_ticket_too(secure_cluster, secure_dir, ticket, tmp_path):
    cluster = secure_cluster
    assert cluster.metastore_uri.startswith("thrift://localhost:")
    argv = [sys.executable, "-c", TABLE_WORKER, secure_dir]
    done = cluster.run(*argv, env=ticket("alice"), cwd=tmp_path)
    assert "rows 3" in done.stdout
    none = {"KRB5CCNAME": f"FILE:{tmp_path / 'none'}"}
    refused = cluster.run(*argv, env=none, check=False, cwd=tmp_path)
    assert refused.returncode != 0
    assert "GSS initiate failed" in refused.stderr
