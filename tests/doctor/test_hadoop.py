"""The doctor's questions to a Hadoop cluster."""

import os
import socket

import pytest

from howdah.doctor import hadoop as doctor_hadoop
from howdah.doctor import yarn as doctor_yarn
from tests.storage.test_hdfs import refused_port, site


def test_without_settings_the_checks_are_skipped(tmp_path):
    for env in ({}, {"HADOOP_CONF_DIR": str(tmp_path)}):
        assert doctor_hadoop.check_namenode(env).status == "skip"
        assert doctor_hadoop.check_login(env).status == "skip"
        assert doctor_hadoop.check_key_servers(env).status == "skip"


def test_a_namenode_that_is_not_there(tmp_path):
    address = f"localhost:{refused_port()}"
    site(tmp_path, "core-site.xml", fs__defaultFS=f"hdfs://{address}")
    check = doctor_hadoop.check_namenode({"HADOOP_CONF_DIR": str(tmp_path)})
    assert check.status == "fail" and address in check.found and check.remedy


def test_another_service_on_the_port_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor_hadoop, "_PROBE_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:  # listens, never answers
        address = f"127.0.0.1:{server.getsockname()[1]}"
        site(tmp_path, "core-site.xml", fs__defaultFS=f"hdfs://{address}")
        check = doctor_hadoop.check_namenode({"HADOOP_CONF_DIR": str(tmp_path)})
    assert check.status == "fail" and "timed out" in check.found


def test_a_name_service_with_a_gap(tmp_path):
    site(tmp_path, "core-site.xml", fs__defaultFS="hdfs://ns1")
    site(tmp_path, "hdfs-site.xml", dfs__ha__namenodes__ns1="nn1,nn2")
    check = doctor_hadoop.check_namenode({"HADOOP_CONF_DIR": str(tmp_path)})
    assert check.status == "fail" and "without an address" in check.found


def test_kerberos_without_and_with_a_keytab(tmp_path):
    site(tmp_path, "core-site.xml", hadoop__security__authentication="kerberos")
    env = {
        "HADOOP_CONF_DIR": str(tmp_path),
        "PATH": os.environ["PATH"],
        "KRB5CCNAME": f"FILE:{tmp_path}/no-cache",
    }
    check = doctor_hadoop.check_login(env)
    assert check.status in ("fail", "warn") and "kinit" in check.remedy
    keytab = tmp_path / "user.keytab"
    check = doctor_hadoop.check_login({**env, "KRB5_CLIENT_KTNAME": str(keytab)})
    assert check.status == "fail" and str(keytab) in check.found
    keytab.write_bytes(b"\x05\x02")
    assert doctor_hadoop.check_login({**env, "KRB5_CLIENT_KTNAME": str(keytab)}).status == "ok"
    tokens = tmp_path / "tokens"
    tokens.write_bytes(b"no tokens")
    check = doctor_hadoop.check_login({**env, "HADOOP_TOKEN_FILE_LOCATION": str(tokens)})
    assert check.status == "fail" and str(tokens) in check.found


def test_key_servers_that_answer_and_that_do_not(tmp_path, key_server):
    port, gone = key_server.server_port, refused_port()
    name = "hadoop__security__key__provider__path"
    statuses = []
    for hosts, last in (("127.0.0.1", port), ("127.0.0.1;127.0.0.2", port), ("127.0.0.1", gone)):
        site(tmp_path, "core-site.xml", **{name: f"kms://http@{hosts}:{last}/kms"})
        check = doctor_hadoop.check_key_servers({"HADOOP_CONF_DIR": str(tmp_path)})
        statuses.append(check.status)
    assert statuses == ["ok", "warn", "fail"] and str(gone) in check.found


@pytest.mark.hadoop
def test_a_cluster_that_answers_and_its_version(cluster):
    check = doctor_hadoop.check_namenode({"HADOOP_CONF_DIR": cluster.conf_dir})
    assert check.status == "ok" and "SIMPLE" in check.found
    assert f"Hadoop {cluster.plan.hadoop} (" in check.found
    check = doctor_yarn.check_resourcemanager({"HADOOP_CONF_DIR": cluster.conf_dir})
    assert check.status == "ok" and f"Hadoop {cluster.plan.hadoop} (" in check.found
