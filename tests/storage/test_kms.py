"""The relay of hdfs-native's requests for keys, and the secrets of errors.

A server of the test stands in for the KMS; test_encryption_zone.py has a real one.
"""

import ssl
import subprocess
import urllib.error
import urllib.request

import pytest

from howdah import storage
from howdah.errors import StorageError, StorageUnavailable
from howdah.hadoop import conf, tokens
from howdah.storage.hdfs import kms, native
from tests.etl.workspace.test_credentials import credentials_file
from tests.fixtures.gateways import KEY

ASK = "/v1/keyversion/key%400/_eek?eek_op=decrypt&user.name=someone"


def relay(uri):
    """A relay to the servers of a URI, on a cluster without Kerberos."""
    settings = conf.HadoopConf(None, {kms.PROVIDER: uri})
    return kms.Relay(kms.KeyServers.of(settings), settings)


def ask(made, path=ASK, body=b'{"name": "key"}'):
    """(status, body) of a request as hdfs-native makes it."""
    url = made.uri.replace("kms://http@", "http://") + path
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body), timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_the_first_server_that_answers_is_asked_from_then_on(key_server, monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "alice")
    port = key_server.server_port
    made = relay(f"kms://http@localhost:{port}/kms")
    assert ask(made) == (200, KEY)
    (path, query, body) = key_server.asked[0]
    assert (path, body) == ("/kms/v1/keyversion/key%400/_eek", b'{"name": "key"}')
    assert query == {"eek_op": ["decrypt"], "user.name": ["alice"]}
    # Nothing listens at the first address.
    both = relay(f"kms://http@127.0.0.2;127.0.0.1:{port}/kms")
    assert ask(both) == (200, KEY) and both._answered.startswith("http://127.0.0.1:")


def test_a_token_is_used_before_a_ticket_and_never_told(key_server, tmp_path, monkeypatch):
    uri = f"kms://http@127.0.0.1:{key_server.server_port}/kms"
    path = tmp_path / "tokens"
    path.write_bytes(credentials_file(600, tokens.KMS_KIND, uri))
    monkeypatch.setenv(tokens.ENVIRONMENT, str(path))
    made = relay(uri)
    assert ask(made)[0] == 200
    (sent,) = key_server.asked[0][1]["delegation"]
    assert sent == tokens.load()[0].url_string() and "user.name" not in key_server.asked[0][1]
    key_server.status, key_server.body = 401, b""
    status, answer = ask(made)
    assert status == 403 and "AuthenticationException" in answer.decode()
    key_server.shutdown()
    key_server.server_close()
    status, answer = ask(made)
    assert status == 503 and b"KeyServerUnavailable" in answer and b"Connection refused" in answer


def test_a_certificate_that_is_not_trusted_is_final(key_server, tmp_path, monkeypatch):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"]
    argv += ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate]
    subprocess.run(argv, check=True, capture_output=True)
    uri = f"kms://https@localhost:{key_server.server_port}/kms"
    assert ask(relay(uri))[0] == 503  # of TLS too, but not of trust: it may pass
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    key_server.socket = context.wrap_socket(key_server.socket, server_side=True)
    (tmp_path / "tokens").write_bytes(credentials_file(600, tokens.KMS_KIND, uri))
    monkeypatch.setenv(tokens.ENVIRONMENT, str(tmp_path / "tokens"))
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    monkeypatch.delenv("CURL_CA_BUNDLE", raising=False)
    status, answer = ask(relay(uri))
    assert status == 403 and kms.NOT_TRUSTED in answer.decode()
    assert "delegation=***left-out***" in answer.decode()
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", f"{tmp_path}/none.pem")
    status, answer = ask(relay(uri))
    assert status == 403 and kms.NOT_TRUSTED in answer.decode() and "none.pem" in answer.decode()
    text = f"KMS request failed (403 Forbidden): {kms.NOT_TRUSTED} {uri}: self-signed"
    error = native._native_error("hdfs://nn/zone/x", "read", f'OperationFailed("{text}")')
    assert isinstance(error, StorageError) and error.got == f"{uri}: self-signed"
    assert "not trusted" in error.what and "REQUESTS_CA_BUNDLE" in error.remedy
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    assert ask(relay(uri)) == (200, KEY)


def test_who_does_not_know_its_path_gets_nothing(key_server):
    made = relay(f"kms://http@localhost:{key_server.server_port}/kms")
    url = made.uri.rpartition("/")[0].replace("kms://http@", "http://")
    for path in (ASK, f"/kms{ASK}", "/"):
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(urllib.request.Request(url + path, b"{}"), timeout=60)
        assert caught.value.code == 404
    assert ask(made, body=b"x" * 100_000)[0] == 413
    assert not key_server.asked


def test_what_is_no_kms_is_left_alone():
    for uri in ("", "jceks://file@/etc/keys", "kms://localhost:9600/kms"):
        assert kms.KeyServers.of(conf.HadoopConf(None, {kms.PROVIDER: uri})) is None
    old = conf.HadoopConf(None, {"dfs.encryption.key.provider.uri": "kms://https@a;b:9600/kms"})
    assert kms.KeyServers.of(old).urls == ("https://a:9600/kms", "https://b:9600/kms")


def test_an_error_over_http_does_not_tell_the_token(tmp_path, monkeypatch):
    core = "<configuration><property><name>hadoop.security.authentication</name>"
    (tmp_path / "core-site.xml").write_text(
        f"{core}<value>kerberos</value></property></configuration>"
    )
    (tmp_path / "tokens").write_bytes(credentials_file(600))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.setenv(tokens.ENVIRONMENT, str(tmp_path / "tokens"))
    monkeypatch.setenv("HOWDAH_STORAGE_RETRY_SECONDS", "0")
    with pytest.raises(StorageUnavailable) as caught:
        storage.read_bytes("webhdfs://127.0.0.1:1/x")  # nothing listens there
    assert "delegation=" in str(caught.value)
    assert tokens.load()[0].url_string() not in str(caught.value)
