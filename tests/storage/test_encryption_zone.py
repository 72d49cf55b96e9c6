"""Encrypted directories of HDFS: files are read and written with the keys of a real KMS."""

import os

import pytest

from howdah import storage
from tests.fixtures.etl_yarn import YarnEtl, whole
from tests.runs.jobs.yarn_jobs import Jobs, place_data, settings
from tests.support.hadoop.kerberos_users import become_alice, ticket

pytestmark = [pytest.mark.hadoop, pytest.mark.full]


@pytest.fixture
def alice(secure_cluster, zone, tmp_path, monkeypatch):
    """This process is alice, by her keytab."""
    become_alice(secure_cluster, tmp_path, monkeypatch)
    monkeypatch.setenv("HOWDAH_STORAGE_RETRY_SECONDS", "0")
    jobs = Jobs(secure_cluster, tmp_path)
    jobs.env |= {name: os.environ[name] for name in ("KRB5CCNAME", "KRB5_CLIENT_KTNAME")}
    return jobs


def read_by(jobs, path, **env):
    """What a process of its own prints of a file: how many bytes it has, or the error."""
    program = (
        "import sys\nfrom howdah import storage\nfrom howdah.errors import HowdahError\n"
        "try:\n    print(len(storage.read_bytes(sys.argv[1])))\n"
        "except HowdahError as error:\n    print(type(error).__name__, error)\n"
    )
    env.setdefault("HOWDAH_STORAGE_RETRY_SECONDS", "0")
    out, err = jobs.start_program(program, path, **env).communicate(timeout=120)
    assert not err, err
    return out


def test_files_are_encrypted_there_and_read_from_anywhere_in_them(secure_cluster, zone, alice):
    data = os.urandom(3_000_000)
    path = zone.url.removeprefix(secure_cluster.hdfs_url)
    storage.write_whole(f"{zone.url}/direct", data)
    assert storage.read_bytes(f"{zone.url}/direct") == data
    with storage.open_read(f"{zone.url}/direct") as file:
        file.seek(1_234_567)
        assert file.read(1000) == data[1_234_567:1_235_567]
    info = ("hdfs", "crypto", "-getFileEncryptionInfo", "-path", f"{path}/direct")
    assert "keyName: key" in secure_cluster.run_as_superuser(*info).stdout


def test_what_is_missing_is_named(secure_cluster, zone, alice, tmp_path):
    path = f"{zone.url}/x"
    storage.write_whole(path, b"x" * 1000)
    assert read_by(alice, path) == "1000\n"
    unnamed = read_by(alice, path, HADOOP_CONF_DIR=zone.bare)
    assert "encryption zone" in unnamed and "hadoop.security.key.provider.path" in unnamed
    bob = ticket(secure_cluster, tmp_path, "bob", "bob")
    refused = read_by(alice, path, **bob)
    assert refused.startswith("PermissionDenied") and "bob" in refused and "key server" in refused
    none = {"KRB5CCNAME": f"FILE:{tmp_path}/none", "KRB5_CLIENT_KTNAME": "/none"}
    assert read_by(alice, path, **none).startswith("NotAuthenticated")
    # Over HTTP a DataNode decrypts, as its own user, who may not.
    web = secure_cluster.webhdfs_url + path.removeprefix(secure_cluster.hdfs_url)
    assert read_by(alice, web).startswith("PermissionDenied")
    if secure_cluster.plan.tls:
        untrusted = read_by(alice, path, REQUESTS_CA_BUNDLE="", HOWDAH_STORAGE_RETRY_SECONDS="60")
        assert untrusted.startswith("StorageError"), untrusted
        assert "certificate" in untrusted and "not trusted" in untrusted
    zone.stop()
    away = read_by(alice, path)
    assert away.startswith("StorageUnavailable") and "key server" in away


def test_a_job_reads_and_writes_there_by_its_tokens(secure_cluster, zone, alice, tiny_model_dir):
    place_data(zone.url, tiny_model_dir)
    config = alice.config(settings(zone.url, "encrypted"))
    answer = alice.json("submit", "--config", config, "--wait")
    assert answer["status"]["final_status"] == "SUCCEEDED"
    names = {entry.name for entry in storage.list_dir(f"{zone.url}/runs/encrypted/export")}
    assert "model.safetensors" in names
    secure_cluster.end_applications()


@pytest.mark.spark
@pytest.mark.parametrize("mode", ["cluster", "client"])
def test_a_dataset_is_made_there_of_rows_there(secure_cluster, zone, alice, tiny_model_dir, mode):
    etl = YarnEtl(secure_cluster, zone.url, tiny_model_dir, alice.directory)
    config = etl.config(source=etl.put_rows(40), spark={"deploy_mode": mode})
    code, answer, err = etl.run(config, **alice.env)
    assert code == 0, err
    whole(answer["dataset"], 40)
