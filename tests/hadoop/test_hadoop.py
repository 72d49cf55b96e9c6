"""Hadoop's settings and credentials files, read without Hadoop."""

import base64
import struct

import pytest

from howdah import storage
from howdah.errors import ConfigError, NotAuthenticated
from howdah.hadoop import conf, rpc, tokens
from howdah.storage import retry


def write(directory, name: str, inner: str) -> None:
    (directory / name).write_text(f"<?xml version='1.0'?><configuration>{inner}</configuration>")


def prop(name: str, value: str, more: str = "") -> str:
    return f"<property><name> {name} </name><value>{value}</value>{more}</property>"


def test_settings_includes_finals_and_references(tmp_path, monkeypatch):
    monkeypatch.setenv("OUR_PORT", "8020")
    write(tmp_path, "more.xml", prop("our.host", "nn.example"))
    write(
        tmp_path,
        "core-site.xml",
        "<include xmlns='http://www.w3.org/2001/XInclude' href='more.xml'/>"
        + prop("fs.defaultFS", "hdfs://${our.host}:${env.OUR_PORT}/")
        + prop("a", "core", "<final>true</final>")
        + prop("b", "core")
        + prop("loop", "${loop}")
        + prop("unknown", "${not.set}"),
    )
    write(tmp_path, "hdfs-site.xml", prop("a", "hdfs") + prop("b", "hdfs"))
    settings = conf.load({"HADOOP_CONF_DIR": str(tmp_path)})
    assert settings.default_fs == "hdfs://nn.example:8020"
    assert settings.default_authority() == "nn.example:8020"
    assert (settings.get("a"), settings.get("b")) == ("core", "hdfs")
    assert settings.get("unknown") == "${not.set}" and settings.get("none") is None
    assert [path.rpartition("/")[2] for path in settings.files] == [
        "core-site.xml",
        "more.xml",
        "hdfs-site.xml",
    ]
    assert not settings.kerberos and not settings.is_name_service("nn.example:8020")
    assert settings.rpc_addresses("nn.example") == ["nn.example:8020"]
    assert settings.web_urls("nn.example") == ["http://nn.example:9870"]
    assert settings.web_urls("nn.example", secure=True) == ["https://nn.example:9871"]


@pytest.mark.parametrize(
    "url",
    [
        "hdfs://127.0.0.1:x/y", "hdfs://127.0.0.1:99999/y", "hdfs://127.0.0.1:0/y", "hdfs://:/y",
        "hdfs://:8020/y", "hdfs://nn:/y", "webhdfs://[::/y", "webhdfs://nn:1:2/y",
        "swebhdfs://nn:x/y",
    ],
)  # fmt: skip
def test_an_address_that_cannot_be_one_is_refused_before_the_first_call(monkeypatch, url):
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    monkeypatch.delenv("HADOOP_HOME", raising=False)
    monkeypatch.setenv(retry.ENVIRONMENT, "60")
    monkeypatch.setattr(retry.time, "sleep", lambda _: pytest.fail("it tried again"))
    with pytest.raises(ConfigError, match="not HOST:PORT") as caught:
        storage.exists(url)
    assert caught.value.where == url.partition("://")[2].rpartition("/")[0]


def test_addresses_and_name_services_stay_valid():
    service = {
        "dfs.ha.namenodes.my-cluster": "a,b",
        "dfs.namenode.rpc-address.my-cluster.a": "one:8020",
        "dfs.namenode.rpc-address.my-cluster.b": "two:8020",
    }
    settings = conf.HadoopConf(None, service)
    assert settings.rpc_addresses("my-cluster") == ["one:8020", "two:8020"]
    assert settings.rpc_addresses("nn_1.example:65535") == ["nn_1.example:65535"]
    assert settings.rpc_addresses("[::1]") == ["[::1]:8020"]
    assert settings.web_urls("[fe80::1]:9870") == ["http://[fe80::1]:9870"]


@pytest.mark.parametrize(
    ("text", "umask"),
    [
        ("022", 0o022),
        (" 0077 ", 0o077),
        ("u=rwx,g=rx,o=", 0o027),
        ("u=rwx,g=rx,o=rx", 0o022),
        ("u=rwx g=r", 0o037),
        ("a=rx", 0o222),
        ("=rwx", 0o000),
        ("ug+rwx,o-rwx", 0o007),
    ],
)
def test_both_forms_of_a_umask(text, umask):
    assert conf.HadoopConf(None, {"fs.permissions.umask-mode": text}).umask == umask


@pytest.mark.parametrize("text", ["22", "1022", "888", "u=rwx;g=rx", "u=rwX", "rwxr-x---", "g"])
@pytest.mark.parametrize("scheme", ["hdfs", "webhdfs"])
def test_an_invalid_umask_is_a_config_error(tmp_path, monkeypatch, text, scheme):
    write(tmp_path, "core-site.xml", prop("fs.permissions.umask-mode", text))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(ConfigError, match="umask") as caught:
        storage.exists(f"{scheme}://127.0.0.1:9/x")
    assert str(tmp_path) in caught.value.where and caught.value.got == repr(text)


def test_missing_and_broken_settings(tmp_path):
    assert conf.load({}) == conf.HadoopConf(None)
    home = tmp_path / "hadoop"
    assert conf.load({"HADOOP_HOME": str(home)}).directory is None
    (home / "etc" / "hadoop").mkdir(parents=True)
    write(home / "etc" / "hadoop", "core-site.xml", prop("x", "y"))
    assert conf.load({"HADOOP_HOME": str(home)}).get("x") == "y"
    with pytest.raises(ConfigError, match="none of Hadoop's files"):
        conf.load({"HADOOP_CONF_DIR": str(tmp_path)})
    (tmp_path / "core-site.xml").write_text("<configuration><property>")
    with pytest.raises(ConfigError, match="no XML") as caught:
        conf.load({"HADOOP_CONF_DIR": str(tmp_path)})
    assert caught.value.where == str(tmp_path / "core-site.xml")


# What TokenIdentifier's write() makes: version, owner, renewer, real user, issued, last, numbers.
IDENTIFIER = b"\0\x05alice\x04yarn\x00" + bytes([0x8A]) + (1_700_000_000_000).to_bytes(6, "big")
IDENTIFIER += bytes([0x8A]) + (1_700_600_000_000).to_bytes(6, "big") + b"\x05\x02"
SERVICE, KIND, PASSWORD = b"127.0.0.1:8020", b"HDFS_DELEGATION_TOKEN", b"p" * 200


def writable() -> bytes:
    body = b"HDTS\x00\x01" + b"\x05alias" + bytes([len(IDENTIFIER)]) + IDENTIFIER
    return body + b"\x8f\xc8" + PASSWORD + bytes([len(KIND)]) + KIND + b"\x0e" + SERVICE + b"\0"


def field(number: int, value: bytes) -> bytes:
    size = (
        bytes([len(value)])
        if len(value) < 128
        else struct.pack("<BB", len(value) & 127 | 128, len(value) >> 7)
    )
    return bytes([number << 3 | 2]) + size + value


def protobuf() -> bytes:
    token = field(1, IDENTIFIER) + field(2, PASSWORD) + field(3, KIND) + field(4, SERVICE)
    storage = field(1, field(1, b"alias") + field(2, token)) + field(2, field(1, b"secret"))
    return b"HDTS\x01" + field(0, storage)[1:]


@pytest.mark.parametrize("make", [writable, protobuf])
def test_both_formats_of_credentials(make, tmp_path):
    path = tmp_path / "tokens"
    path.write_bytes(make())
    (token,) = tokens.load({"HADOOP_TOKEN_FILE_LOCATION": str(path)})
    assert (token.kind, token.service) == (tokens.HDFS_KIND, "127.0.0.1:8020")
    assert (token.identifier, token.password) == (IDENTIFIER, PASSWORD)
    assert token.expires == 1_700_600_000
    raw = base64.urlsafe_b64decode(token.url_string() + "==")
    assert (
        raw
        == bytes([len(IDENTIFIER)])
        + IDENTIFIER
        + b"\x8f\xc8"
        + PASSWORD
        + b"\x15"
        + KIND
        + b"\x0e"
        + SERVICE
    )


@pytest.mark.parametrize("cut", [0, 3, 5, 6, 30, 200, -1])
def test_damaged_credentials_are_refused(cut, tmp_path):
    for whole in (writable()[:-1], protobuf()):
        path = tmp_path / "tokens"
        path.write_bytes(whole[:cut])
        with pytest.raises(NotAuthenticated) as caught:
            tokens.load({"HADOOP_TOKEN_FILE_LOCATION": str(path)})
        assert caught.value.where == str(path)
    with pytest.raises(NotAuthenticated):
        tokens.load({"HADOOP_TOKEN_FILE_LOCATION": str(tmp_path / "none")})
    assert tokens.load({}) == []


def test_answers_that_are_no_rpc():
    for answer in (b"", b"\xff\xff\xff", b"\x05hello"):
        with pytest.raises(ValueError):
            rpc._methods(answer)


@pytest.mark.parametrize(
    ("value", "filled"),
    [
        ("${env.OUR_HOST-nn}", "nn"),
        ("${env.OUR_HOST:-nn}", "nn"),
        ("${env.OUR_EMPTY-nn}", ""),
        ("${env.OUR_EMPTY:-nn}", "nn"),
        ("${env.OUR_PORT:-9}", "8020"),
        ("${env.OUR_HOST:-${our.host}}", "inner"),
        ("${env.OUR_HOST}", "${env.OUR_HOST}"),
    ],
)
def test_a_variable_may_have_a_default(tmp_path, monkeypatch, value, filled):
    """Source: org.apache.hadoop.conf.Configuration.substituteVars."""
    monkeypatch.delenv("OUR_HOST", raising=False)
    monkeypatch.setenv("OUR_EMPTY", "")
    monkeypatch.setenv("OUR_PORT", "8020")
    write(tmp_path, "core-site.xml", prop("a", value) + prop("our.host", "inner"))
    assert conf.load({"HADOOP_CONF_DIR": str(tmp_path)}).get("a") == filled


def test_the_short_form_of_a_property(tmp_path):
    write(tmp_path, "core-site.xml", "<property name='a' value='1' final='true'/>" + prop("a", "2"))
    assert conf.load({"HADOOP_CONF_DIR": str(tmp_path)}).get("a") == "1"


def test_a_file_in_an_unknown_encoding_is_named(tmp_path):
    (tmp_path / "core-site.xml").write_text("<?xml version='1.0' encoding='x-foo'?><a/>")
    with pytest.raises(ConfigError, match="no XML") as caught:
        conf.load({"HADOOP_CONF_DIR": str(tmp_path)})
    assert caught.value.where == str(tmp_path / "core-site.xml")


@pytest.mark.parametrize("names", ["", " , "])
def test_a_name_service_without_namenodes_is_refused(names):
    settings = conf.HadoopConf(None, {"dfs.ha.namenodes.ns": names})
    for look in (settings.rpc_addresses, settings.web_urls):
        with pytest.raises(ConfigError, match="no NameNodes"):
            look("ns")
