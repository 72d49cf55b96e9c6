"""A Kerberised HDFS: keytab, ticket, token, acting as another user, and what goes wrong."""

import os
import subprocess
import sys

import pytest

from howdah import storage
from howdah.doctor import hadoop as doctor_hadoop
from howdah.errors import NotAuthenticated, PermissionDenied
from howdah.hadoop import tokens

pytestmark = pytest.mark.hadoop


@pytest.fixture
def login(secure_cluster, tmp_path, monkeypatch):
    """This process's environment for the secure cluster, with an empty ticket cache of its own."""
    for name in ("HADOOP_USER_NAME", "HADOOP_PROXY_USER", "HADOOP_TOKEN_FILE_LOCATION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("KRB5_CLIENT_KTNAME", raising=False)
    monkeypatch.setenv("KRB5_CONFIG", secure_cluster.env["KRB5_CONFIG"])
    monkeypatch.setenv("KRB5CCNAME", f"FILE:{tmp_path}/tickets")
    monkeypatch.setenv("HADOOP_CONF_DIR", secure_cluster.conf_dir)
    monkeypatch.setenv("HOWDAH_STORAGE_RETRY_SECONDS", "0")
    return monkeypatch


@pytest.fixture
def keytab(secure_cluster, login):
    """Logs in as a user, by keytab alone."""

    def use(user: str) -> None:
        login.setenv("KRB5_CLIENT_KTNAME", str(secure_cluster.keytab(user)))

    return use


def places(cluster, directory: str) -> list[str]:
    """The directory by both protocols."""
    return [directory, cluster.webhdfs_url + directory.removeprefix(cluster.hdfs_url)]


def owner(cluster, path: str) -> str:
    """The owner of a file, as the NameNode's WebHDFS tells this process."""
    from howdah.storage.hdfs import webhdfs

    backend = webhdfs.WebHdfsStorage(cluster.webhdfs_url, cluster.webhdfs_url.partition("//")[2])
    return backend._client().status("/" + path.partition("://")[2].partition("/")[2])["owner"]


def in_child(code: str) -> subprocess.CompletedProcess:
    """A process of its own: Kerberos keeps what it found for the life of one."""
    return subprocess.run(
        [sys.executable, "-c", f"from howdah import storage\n{code}"],
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_keytab_is_enough(secure_cluster, secure_dir, keytab):
    """Neither kinit nor a name in the environment; block tokens and data protection hold too."""
    keytab("alice")
    for place in places(secure_cluster, secure_dir):
        path = storage.join(place, "x" + storage.scheme(place))
        storage.create_exclusive(path, b"x" * 300_000)
        assert storage.read_bytes(path) == b"x" * 300_000
        assert owner(secure_cluster, path) == "alice"
    assert len(storage.list_dir(secure_dir)) == 2
    env = dict(os.environ)
    assert doctor_hadoop.check_namenode(env).status == "ok"
    assert doctor_hadoop.check_login(env).status == "ok"


def test_missing_credentials_fail_at_once(secure_cluster, secure_dir, login):
    for place in places(secure_cluster, secure_dir):
        for act in (storage.list_dir, lambda p: storage.write_whole(storage.join(p, "x"), b"x")):
            with pytest.raises(NotAuthenticated) as caught:
                act(place)
            assert "kinit" in caught.value.remedy and caught.value.where.startswith(place)
            assert caught.value.exit_code == 5
    assert doctor_hadoop.check_login(dict(os.environ)).status == "fail"


def test_settings_without_kerberos_fail_instead_of_hanging(secure_dir, keytab, login):
    keytab("alice")
    login.delenv("HADOOP_CONF_DIR")
    login.delenv("HADOOP_HOME", raising=False)
    with pytest.raises(NotAuthenticated) as caught:
        storage.list_dir(secure_dir)
    assert "HADOOP_CONF_DIR" in caught.value.remedy and "not set" in caught.value.got


@pytest.mark.full
def test_an_expired_ticket_is_named(secure_cluster, secure_dir, login):
    table = str(secure_cluster.keytab("alice"))
    subprocess.run(["kinit", "-l", "3s", "-kt", table, "alice"], check=True)
    assert in_child(f"print(len(storage.list_dir({secure_dir!r})))").stdout.strip() == "0"
    while subprocess.run(["klist", "-s"], check=False).returncode == 0:
        pass  # klist itself takes its time
    for place in places(secure_cluster, secure_dir):
        done = in_child(
            "from howdah.errors import NotAuthenticated\n"
            f"try: storage.list_dir({place!r})\n"
            "except NotAuthenticated as error: print(error)"
        )
        assert "kinit" in done.stdout and not done.stderr, done
        if place.startswith("hdfs"):
            assert "expired" in done.stdout


@pytest.mark.full
def test_acting_as_another_user(secure_cluster, secure_dir, keytab, login):
    """doAs: the files are bob's. A user who may not impersonate him gets a typed error."""
    keytab("root")  # the cluster's proxy user
    login.setenv("HADOOP_PROXY_USER", "bob")
    for place in places(secure_cluster, secure_dir):
        path = storage.join(place, "bobs-" + storage.scheme(place))
        storage.write_whole(path, b"x")
        assert owner(secure_cluster, path) == "bob"
    done = in_child(
        "import os\n"
        f"os.environ['KRB5_CLIENT_KTNAME'] = {str(secure_cluster.keytab('alice'))!r}\n"
        "os.environ['KRB5CCNAME'] += '-alice'\n"
        "from howdah.errors import PermissionDenied\n"
        f"for place in {places(secure_cluster, secure_dir)!r}:\n"
        "    try: storage.list_dir(place)\n"
        "    except PermissionDenied as error: print(error)"
    )
    assert done.stdout.count("impersonate bob") >= 2, done
    assert done.stdout.count("proxyuser") == 2


@pytest.mark.full
def test_a_token_file_is_enough(secure_cluster, secure_dir, keytab, login, tmp_path):
    """A container has tokens by HADOOP_TOKEN_FILE_LOCATION, but no ticket and no keytab."""
    keytab("alice")
    assert storage.list_dir(secure_dir) == []  # the ticket is in the cache now
    path = tmp_path / "tokens"
    secure_cluster.run(
        "hdfs", "fetchdt", "--renewer", "root", str(path),
        env={"KRB5CCNAME": os.environ["KRB5CCNAME"]},
    )  # fmt: skip
    login.delenv("KRB5_CLIENT_KTNAME")
    login.setenv("KRB5CCNAME", f"FILE:{tmp_path}/none")
    login.setenv("HADOOP_TOKEN_FILE_LOCATION", str(path))
    (token,) = tokens.load()
    assert token.kind == tokens.HDFS_KIND and token.service.startswith("127.0.0.1:")
    for place in places(secure_cluster, secure_dir):
        name = storage.join(place, "x" + storage.scheme(place))
        storage.write_whole(name, b"x" * 100_000)
        assert storage.read_bytes(name) == b"x" * 100_000
    assert doctor_hadoop.check_login(dict(os.environ)).status == "ok"

    whole = path.read_bytes()
    wrong = tmp_path / "wrong"
    at = whole.index(token.password)
    wrong.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    login.setenv("HADOOP_TOKEN_FILE_LOCATION", str(wrong))
    for place in places(secure_cluster, secure_dir):
        with pytest.raises(NotAuthenticated) as caught:
            storage.list_dir(place)
        assert "HADOOP_TOKEN_FILE_LOCATION" in caught.value.remedy
    foreign = tmp_path / "foreign"
    foreign.write_bytes(whole.replace(b"127.0.0.1", b"127.0.0.9"))
    login.setenv("HADOOP_TOKEN_FILE_LOCATION", str(foreign))
    login.delenv("KRB5CCNAME")
    login.setattr("howdah.storage.hdfs.native.may_have_ticket", lambda: False)
    login.setattr("howdah.storage.hdfs.webhdfs.may_have_ticket", lambda: False)
    for place in places(secure_cluster, secure_dir):
        with pytest.raises(NotAuthenticated) as caught:
            storage.list_dir(place)
        assert "127.0.0.9" in caught.value.got
    foreign.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(NotAuthenticated) as caught:
        storage.list_dir(secure_dir)
    assert caught.value.where == str(foreign)


@pytest.mark.full
def test_permission_is_not_authentication(secure_cluster, secure_dir, keytab):
    keytab("alice")
    for place in places(secure_cluster, secure_dir):
        with pytest.raises(PermissionDenied) as caught:
            storage.write_whole(f"{place.partition('/test/')[0]}/not-ours", b"x")
        assert "alice" in caught.value.got
