"""New delegation tokens for the ETL's Python tasks, in files of their own."""

import os
import threading
import time
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError

from howdah.errors import NotAuthenticated
from howdah.etl.workspace import credentials
from howdah.hadoop import tokens
from howdah.spark.errors import crossing
from tests.support.waiting import wait_until


def varlong(value: int) -> bytes:
    """Hadoop's WritableUtils for what needs 6 bytes: milliseconds of our days."""
    return bytes([0x8A]) + value.to_bytes(6, "big")


def credentials_file(
    seconds: float, kind: str = tokens.HDFS_KIND, service: str = "127.0.0.1:8020"
) -> bytes:
    """A credentials file with one token that ends in so many seconds."""
    end = int((time.time() + seconds) * 1000)
    identifier = b"\0\x05alice\x04yarn\x00" + varlong(end - 1000) + varlong(end) + b"\x05\x02"
    parts = [b"alias", identifier, b"password", kind.encode(), service.encode()]
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
    token_bytes = credentials_file(7 * 86400)

    def work(batches):
        for batch in batches:
            yield batch, credentials.ends(tokens.load())

    (answer,) = crossing(credentials.using(work, credentials.TaskTokens(token_bytes)))(
        iter(["rows"])
    )
    assert answer == ("rows", credentials.ends(tokens.parse(token_bytes)))
    path = os.environ[tokens.ENVIRONMENT]
    assert os.path.dirname(path) == str(container)
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert (container / "container_tokens").read_bytes() != token_bytes
    # The next ones take their place, in the same file.
    later = credentials_file(8 * 86400)
    credentials.use(later)
    assert os.environ[tokens.ENVIRONMENT] == path
    with open(path, "rb") as file:
        assert file.read() == later
    assert sorted(os.listdir(container)) == ["container_tokens", os.path.basename(path)]


def test_a_task_that_waited_long_reads_newer_ones_where_the_driver_keeps_them(
    container, tmp_path_factory, monkeypatch
):
    monkeypatch.setattr(credentials, "_looked", float("-inf"))
    place = tmp_path_factory.mktemp("staging") / "newest"
    newest = credentials_file(2 * 86400)
    place.write_bytes(newest)
    secrets = credentials.TaskTokens(credentials_file(86400), str(place))

    def work(batches):
        for _ in batches:
            yield credentials.ends(tokens.load())

    assert list(credentials.using(work, secrets)(iter(["rows"]))) == [
        credentials.ends(tokens.parse(newest))
    ]
    # One that is not there, or no tokens' file, leaves what there is.
    for spoil in (place.unlink, lambda: place.write_bytes(b"HDTS\0\x05")):
        spoil()
        monkeypatch.setattr(credentials, "_looked", float("-inf"))
        assert len(list(credentials.using(work, secrets)(iter(["rows"])))) == 1


class Users:
    """Hadoop's UserGroupInformation, as much of it as is asked."""

    def __init__(self, secure):
        self.isSecurityEnabled = lambda: secure


@pytest.fixture
def driver(container, monkeypatch):
    """A Keeper's world: `held` is what Spark has, `published` what the tasks find."""
    world = SimpleNamespace(held=credentials_file(3600), published=[], keeper=None)
    monkeypatch.setattr(credentials, "_LOOK_SECONDS", 0.02)
    monkeypatch.setattr(credentials, "_users", lambda spark: Users(True))
    monkeypatch.setattr(credentials, "_held", lambda spark: world.held)

    def publish(spark, data):
        if world.published == ["no place"]:
            raise Py4JError("no place")
        world.published.append(data)
        return "hdfs://somewhere/howdah-tokens"

    monkeypatch.setattr(credentials, "_publish", publish)
    with credentials.Keeper(None) as world.keeper:
        yield world
    # A last look that is under way must not set the variable after it has been put back.
    wait_until(lambda: not any(one.name == "etl-tokens" for one in threading.enumerate()))


def test_the_driver_takes_and_publishes_what_spark_gets(driver):
    first = driver.held
    lines = []
    secrets = driver.keeper.secrets(lines.append)
    assert secrets == credentials.TaskTokens(first, "hdfs://somewhere/howdah-tokens")
    assert len(lines) == 1 and "end at" in lines[0]
    driver.held = credentials_file(7200)
    wait_until(lambda: driver.published == [first, driver.held])
    assert credentials.ends(tokens.load()) == credentials.ends(tokens.parse(driver.held))


def test_without_a_place_for_them_tasks_have_what_they_are_given(driver):
    driver.published[:] = ["no place"]
    driver.held = credentials_file(7200)
    assert driver.keeper.secrets() == credentials.TaskTokens(driver.held, driver.keeper._newest)


def test_tokens_that_are_about_to_end_are_refused_before_anything_is_written(driver):
    driver.held = credentials_file(30)
    with pytest.raises(NotAuthenticated) as caught:
        driver.keeper.secrets()
    assert "data.spark.keytab" in caught.value.remedy


def test_without_kerberos_there_is_nothing_to_keep(monkeypatch):
    monkeypatch.setattr(credentials, "_users", lambda spark: Users(False))
    with credentials.Keeper(None) as keeper:
        assert keeper.secrets() is None


def test_processes_of_one_container_share_what_one_of_them_found(container, monkeypatch):
    credentials.use(credentials_file(7 * 86400))
    path = os.environ[tokens.ENVIRONMENT]
    monkeypatch.setenv(tokens.ENVIRONMENT, str(container / "container_tokens"))  # another process
    credentials.use(credentials_file(86400))
    assert os.environ[tokens.ENVIRONMENT] == path


@pytest.mark.parametrize(
    "tokens_file",
    [None, credentials_file(10), credentials_file(9e5, "YARN_AM_RM_TOKEN")],
    ids=["none", "older", "not for HDFS"],
)
def test_what_is_no_better_is_left(container, tokens_file):
    credentials.use(tokens_file)
    assert os.environ[tokens.ENVIRONMENT] == str(container / "container_tokens")
    assert os.listdir(container) == ["container_tokens"]


def test_outside_a_container_a_login_counts(container, monkeypatch):
    monkeypatch.delenv(tokens.ENVIRONMENT)
    credentials.use(credentials_file(9e5))
    assert tokens.ENVIRONMENT not in os.environ
    assert os.listdir(container) == ["container_tokens"]
