"""A server on YARN as an application: its status and its end, with a stand-in for YARN."""

import pytest

from howdah import storage
from howdah.config import loader
from howdah.errors import ModelError, UsageError
from howdah.jobs.record import Record
from howdah.jobs.status.text import status_lines
from howdah.models.server_file import ServerAddress, path_of, write
from howdah.yarn import server
from howdah.yarn.application import YarnApplication
from howdah.yarn.server_cluster import ServerCluster
from tests.yarn.client.test_application import APP, Manager

TOKEN, OTHER = b"0123456789abcdef", b"fedcba9876543210"
HEALTH = {"status": "ready", "models": [{"model": "zoo", "version": 3}]}


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A model's directory with the record of its server, which answers."""
    directory = str(tmp_path / "zoo")
    Record(token="t", kind="server", on="yarn", run_directory=directory, application=APP).write()
    address = ServerAddress(url="http://node:41", application=APP, container="c_1", started=1.5)
    write(path_of(directory), address, [TOKEN])
    monkeypatch.setattr(server, "_health", lambda url: HEALTH)
    return directory


def application(model, *tokens, manager=None):
    return YarnApplication(manager or Manager(), APP, model, tokens=lambda: list(tokens))


def test_the_status_of_a_server_has_its_address_and_health(model):
    for tokens in ([], [TOKEN]):
        status = application(model, *tokens).status()
        assert status["server"] == {
            "url": "http://node:41", "container": "c_1", "health": HEALTH, "file": path_of(model),
        }  # fmt: skip
    text = "\n".join(status_lines(status))
    assert "http://node:41  ready  zoo version 3" in text and "reported nothing" not in text
    with pytest.raises(ModelError, match="not signed with this token"):
        application(model, OTHER).status()


def test_an_address_of_another_application_is_not_believed(model):
    other = YarnApplication(Manager(), "application_1_0009", model)
    assert other.status()["server"] is None  # the record names another
    address = ServerAddress(url="http://x:1", application="application_1_0009", container="c",
                            started=2.0)  # fmt: skip
    write(path_of(model), address, [TOKEN])
    assert application(model).status()["server"]["url"] is None
    application(model).kill(save=True, save_seconds=1, progress=print)
    assert storage.exists(path_of(model))


def test_the_end_of_a_server_removes_its_address(model):
    manager = Manager()
    assert (
        application(model, manager=manager).kill(save=True, save_seconds=1, progress=print)
        == "KILLED"
    )
    assert manager.killed == 1 and not storage.exists(path_of(model))


def test_a_server_needs_a_token_or_to_be_open_and_a_published_model(tmp_path):
    def check(tokens=(), **section):
        config = loader.from_dict({"serve": section})
        ServerCluster(config, "hdfs://nn/models/zoo", lambda: list(tokens)).check(print)

    with pytest.raises(UsageError, match="would need no token"):
        check()
    with pytest.raises(UsageError, match="does not implement"):
        check([TOKEN], port=80)
    local = ServerCluster(
        loader.from_dict({"serve": {"open": True}}), f"file://{tmp_path}/zoo", list
    )
    with pytest.raises(ModelError, match="this directory has no published model"):
        local.check(print)
