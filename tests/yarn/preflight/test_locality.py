"""Preferred hosts come from a NameNode's web interface, and a job runs without them."""

import json

import pytest

from howdah.errors import ClusterError
from howdah.hadoop.conf import HadoopConf
from howdah.yarn.preflight import locality
from tests.hadoop.test_resourcemanager import server

BLOCKS = [{"hosts": ["a", "b"], "length": 10}, {"hosts": ["b"], "length": 5}]


@pytest.fixture
def hosts(monkeypatch):
    """The bytes on each host, by an answer of a stand-in for the NameNode."""

    def ask(answer):
        monkeypatch.setattr(locality.settings, "load", lambda: HadoopConf("/conf", {}))
        with server(lambda method, path: answer) as (address, _):
            monkeypatch.setattr(locality, "_web_urls", lambda *_: [f"http://{address}"])
            return locality.block_hosts(["hdfs://nn/data/a", "hdfs://nn/data/b"])

    return ask


def test_every_replica_counts(hosts):
    answer = {"BlockLocations": {"BlockLocation": BLOCKS}}
    assert hosts((200, {}, json.dumps(answer))) == {"a": 20, "b": 30}
    assert hosts((200, {}, '{"BlockLocations": {}}')) == {}


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ((200, {"Content-Type": "text/html"}, "<html>sign in</html>"), "Expecting value"),
        ((200, {}, "[]"), "without BlockLocations"),
        ((200, {}, '{"RemoteException": {}}'), "without BlockLocations"),
        ((403, {}, ""), "HTTP 403"),
    ],
)
def test_an_answer_that_is_not_the_namenodes_is_one_error(hosts, answer, cause):
    with pytest.raises(ClusterError, match="does not give block locations") as caught:
        hosts(answer)
    assert cause in caught.value.got
