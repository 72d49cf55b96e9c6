"""The ETL on a Kerberised cluster: a keytab, no ticket, acting for another user."""

import pytest

from howdah import storage
from howdah.manifest import load_dataset
from tests.fixtures_etl_yarn import YarnEtl
from tests.kerberos_users import become_alice, ticket

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
    assert _owner(secure_etl, storage.join(answer["dataset"], "manifest.json")) == "bob"
    shard = next(iter(load_dataset(answer["dataset"]).manifest.splits["train"])).name
    assert _owner(secure_etl, storage.join(answer["dataset"], shard)) == "bob"
    status = cluster.run(
        "yarn", "application", "-status", answer["application"], env={**cluster.env, **env}
    )
    assert "User : bob" in status.stdout
