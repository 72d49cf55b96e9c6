"""New delegation tokens for the ETL's Python tasks, in files of their own."""

import os
import time

import pytest

from etl import credentials
from etl.spark_errors import crossing
from howdah.hadoop import tokens


def varlong(value: int) -> bytes:
    """Hadoop's WritableUtils for what needs 6 bytes: milliseconds of our days."""
    return bytes([0x8A]) + value.to_bytes(6, "big")


def credentials_file(seconds: float, kind: str = tokens.HDFS_KIND) -> bytes:
    """A credentials file with one token that ends in so many seconds."""
    end = int((time.time() + seconds) * 1000)
    identifier = b"\0\x05alice\x04yarn\x00" + varlong(end - 1000) + varlong(end) + b"\x05\x02"
    parts = [b"alias", identifier, b"password", kind.encode(), b"127.0.0.1:8020"]
    body = b"".join(bytes([len(part)]) + part for part in parts)
    return b"HDTS\x00\x01" + body + b"\0"


@pytest.fixture
def container(tmp_path, monkeypatch):
    """A container's directory with its tokens, which end in a minute."""
    path = tmp_path / "container_tokens"
    path.write_bytes(credentials_file(60))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(tokens.ENVIRONMENT, str(path))
    return tmp_path


def test_a_task_reads_the_tokens_that_it_was_given(container):
    given = credentials_file(7 * 86400)

    def work(batches):
        for batch in batches:
            yield batch, credentials.ends(tokens.load())

    (answer,) = crossing(credentials.using(work, given))(iter(["rows"]))
    assert answer == ("rows", credentials.ends(tokens.parse(given)))
    own = os.environ[tokens.ENVIRONMENT]
    assert os.path.dirname(own) == str(container)
    assert os.stat(own).st_mode & 0o777 == 0o600
    assert (container / "container_tokens").read_bytes() != given
    # The next ones take their place; both names stay one file's.
    later = credentials_file(8 * 86400)
    credentials.use(later)
    assert os.environ[tokens.ENVIRONMENT] == own
    with open(own, "rb") as file:
        assert file.read() == later
    assert sorted(os.listdir(container)) == ["container_tokens", os.path.basename(own)]


@pytest.mark.parametrize(
    "given",
    [None, credentials_file(10), credentials_file(9e5, "YARN_AM_RM_TOKEN")],
    ids=["none", "older", "not for HDFS"],
)
def test_what_is_no_better_is_left(container, given):
    credentials.use(given)
    assert os.environ[tokens.ENVIRONMENT] == str(container / "container_tokens")
    assert os.listdir(container) == ["container_tokens"]


def test_outside_a_container_a_login_counts(container, monkeypatch):
    monkeypatch.delenv(tokens.ENVIRONMENT)
    credentials.use(credentials_file(9e5))
    assert tokens.ENVIRONMENT not in os.environ
    assert os.listdir(container) == ["container_tokens"]
