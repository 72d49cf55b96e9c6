"""A job's driver and an agent's relay refuse strangers, replays and pickles."""

import base64
import hashlib
import http.client
import os
import pickle
import subprocess
import threading

import pytest

from howdah.errors import ClusterError
from howdah.jobs.net import rendezvous, signing, wire
from howdah.jobs.net.peer_socket import owner_of_peer
from howdah.jobs.net.relay import Relay
from howdah.jobs.net.signing import new_key
from howdah.jobs.net.wire_server import BODY_LIMIT, Server


class Payload:
    """An object as CVE-2024-10190 sends it: unpickled, it runs a command."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


@pytest.fixture
def driver():
    """A signed server that answers what it was asked, and notes what it refused."""
    key, refused_lines, heard = new_key(), [], []

    def signed(method, path, body):
        heard.append((method, path, body))
        return 200, "application/json", b'{"yes": true}'

    server = Server(
        "127.0.0.1", None, key, signed=signed, page=lambda path: (200, "text/html", path.encode()),
        refused=refused_lines.append,
    )  # fmt: skip
    server.start()
    server.key, server.refused_lines, server.heard = key, refused_lines, heard
    yield server
    server.stop()


def plain(port, method, path, body=None, headers=None):
    """A request as a stranger makes it: (status, body)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request(method, path, body, headers or {})
    response = connection.getresponse()
    return response.status, response.read()


# ------------------------------------------------------------------------------ the driver
def test_the_job_s_own_are_answered(driver):
    client = wire.Client("127.0.0.1", driver.port, driver.key)
    assert client.call("/poll", {"agent": "a"}, 5) == {"yes": True}
    assert driver.heard == [("POST", "/poll", b'{"agent": "a"}')]


def test_the_malicious_put_of_cve_2024_10190_is_refused(driver, tmp_path):
    mark = tmp_path / "it-ran"
    body = base64.b64encode(pickle.dumps(Payload(mark)))
    assert plain(driver.port, "PUT", "/worker_addresses/host:0", body)[0] == 403
    assert not driver.heard
    assert not mark.exists()
    assert pickle.loads(base64.b64decode(body)) == 0  # noqa: S301 - it would have run
    assert mark.exists()


FORGED = {
    "another key": {}, "another path": {}, "no counter": {"X-Howdah-Counter": None},
    "another counter": {"X-Howdah-Counter": "2"}, "a counter written otherwise":
    {"X-Howdah-Counter": "01"}, "another session": {"X-Howdah-Session": "t"},
    "another digest": {"X-Howdah-Body": hashlib.sha256(b'{"x":1}').hexdigest()},
    "a signature that is not ASCII": {"X-Howdah-Signature": "\xe9" * 64},
}  # fmt: skip


@pytest.mark.parametrize("forge", FORGED)
def test_what_is_not_signed_with_the_key_is_refused(driver, forge):
    key = new_key() if forge == "another key" else driver.key
    headers = signing.request_headers(key, "POST", "/poll", "s", 1, b"{}") | FORGED[forge]
    headers = {name: value for name, value in headers.items() if value is not None}
    path = "/report" if forge == "another path" else "/poll"
    assert plain(driver.port, "POST", path, b"{}", headers)[0] == 403
    assert not driver.heard
    assert driver.refused_lines


@pytest.mark.parametrize("body", [b"[]", b"", b"{} ", bytes(2**20 + 1)])
def test_another_body_than_was_signed_is_not_taken(driver, body):
    """Nor is that answer signed: who has changed the body could hand it on to the agent."""
    headers = signing.request_headers(driver.key, "POST", "/poll", "s", 1, b"{}")
    connection = http.client.HTTPConnection("127.0.0.1", driver.port, timeout=10)
    connection.request("POST", "/poll", body[:99], headers | {"Content-Length": str(len(body))})
    response = connection.getresponse()
    assert response.status == (413 if len(body) > BODY_LIMIT else 400)
    assert signing.SIGNATURE not in response.headers
    assert plain(driver.port, "POST", "/poll", b"{}", headers)[0] == 403  # it counted
    assert not driver.heard


def test_a_request_counts_once(driver):
    headers = signing.request_headers(driver.key, "POST", "/poll", "s", 7, b"{}")
    assert plain(driver.port, "POST", "/poll", b"{}", headers)[0] == 200
    assert plain(driver.port, "POST", "/poll", b"{}", headers)[0] == 403
    assert len(driver.heard) == 1


def test_counters_may_overtake_each_other_but_not_by_much():
    sessions = signing.Sessions()
    assert sessions.take("s", 5)
    assert sessions.take("s", 3)
    assert not sessions.take("s", 3)
    assert all(sessions.take("s", number) for number in range(6, 5000))
    assert not sessions.take("s", 4)
    assert sessions.take("t", 4)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content-Length": str(2**40)}, 413),
        ({"Content-Length": "-1"}, 411),
        ({"Transfer-Encoding": "chunked"}, 411),
    ],
)
@pytest.mark.parametrize("ours", [True, False])
def test_a_huge_or_endless_body_is_not_read(driver, headers, status, ours):
    path, key = "/rendezvous/1/global/rank_0", driver.key if ours else new_key()
    signed = signing.request_headers(key, "PUT", path, "s", 1, b"x")
    connection = http.client.HTTPConnection("127.0.0.1", driver.port, timeout=10)
    connection.putrequest("PUT", path)
    for name, value in (headers | signed).items():
        connection.putheader(name, value)
    connection.endheaders()
    assert connection.getresponse().status == (status if ours else 403)
    assert not driver.heard


def test_a_body_that_is_too_great_is_answered_as_the_job_s_own(driver):
    client = wire.Client("127.0.0.1", driver.port, driver.key)
    for length in (BODY_LIMIT, 2**25):
        with pytest.raises(wire.TooLarge):
            client.call("/report", "x" * length, 30)
    assert client.call("/report", "x" * (BODY_LIMIT - 2), 30) == {"yes": True}
    assert len(driver.heard) == 1


def test_an_answer_that_is_not_the_driver_s_is_not_believed(driver):
    with pytest.raises(ClusterError, match="not the job's driver") as caught:
        wire.Client("127.0.0.1", driver.port, new_key()).call("/poll", {}, 5)
    assert not isinstance(caught.value, wire.Refused)


def test_a_driver_that_is_gone_is_said_to_be(driver):
    driver.stop()
    with pytest.raises(ClusterError, match="cannot be reached"):
        wire.Client("127.0.0.1", driver.port, driver.key).call("/poll", {}, 5)


def test_pages_are_open_to_be_read_and_nothing_else_is(driver):
    assert plain(driver.port, "GET", "/page/x/") == (200, b"/page/x/")
    assert plain(driver.port, "GET", "/page/x/?user.name=me") == (200, b"/page/x/")  # YARN's proxy
    assert plain(driver.port, "PUT", "/page/x/", b"y")[0] == 403
    assert plain(driver.port, "GET", "/rendezvous/1/global/rank_0")[0] == 403


def test_ports_come_from_the_range_and_a_full_one_is_refused(driver):
    def server(ports):
        return Server("127.0.0.1", ports, driver.key, signed=None, page=None, refused=print)

    first = server(None)
    ports = range(first.port, first.port + 1)
    with pytest.raises(ClusterError, match="cannot listen on any port") as caught:
        server(ports)
    assert "wider range" in caught.value.remedy
    first.stop()
    again = server(ports)
    assert again.port == ports.start
    again.stop()


@pytest.mark.parametrize("ports", [None, range(20500, 20503)])
def test_an_address_of_another_machine_is_not_blamed_on_the_ports(ports):
    with pytest.raises(ClusterError, match="cannot listen") as caught:
        Server("192.0.2.1", ports, new_key(), signed=None, page=None, refused=print)
    assert caught.value.where.startswith("192.0.2.1")
    assert "assign" in caught.value.got and caught.value.remedy is None


# ------------------------------------------------------------------------------- the store
def test_a_generation_s_store_is_its_own():
    store = rendezvous.Rendezvous()
    store.begin(1)
    assert store.put(1, "global", "rank_0", b"here")
    assert store.get(1, "global", "rank_0", 0) == b"here"
    store.begin(2)
    assert store.get(2, "global", "rank_0", 0) is None
    assert not store.put(1, "global", "rank_0", b"late")
    assert store.get(2, "global", "rank_0", 0) is None


def test_who_waits_for_a_key_hears_when_it_comes_and_when_its_world_ends():
    store = rendezvous.Rendezvous()
    store.begin(1)
    got = []
    threads = [
        threading.Thread(target=lambda key=key: got.append(store.get(1, "global", key, 60)))
        for key in ("0", "1")
    ]
    for thread in threads:
        thread.start()
    store.put(1, "global", "0", b"here")
    threads[0].join(30)
    assert got == [b"here"]
    store.begin(2)
    threads[1].join(30)
    assert got == [b"here", None]


@pytest.mark.parametrize(
    ("scope", "key"),
    [("worker_addresses", "host:0"), ("runfunc", "func"), ("global", "../x"), ("global", ""),
     ("Global", "0"), ("global", "x" * 201)],
)  # fmt: skip
def test_only_gloo_s_names_are_taken(scope, key):
    store = rendezvous.Rendezvous()
    store.begin(1)
    assert not store.put(1, scope, key, b"")


def test_a_value_is_bounded():
    store = rendezvous.Rendezvous()
    store.begin(1)
    assert not store.put(1, "global", "0", bytes(rendezvous.VALUE_LIMIT + 1))


# ------------------------------------------------------------------------------- the relay
@pytest.fixture
def relay(driver):
    refused_lines = []
    one = Relay(
        wire.Client("127.0.0.1", driver.port, driver.key), None,
        assignment=lambda: (7, "1,2,0,1,0,2"), refused=refused_lines.append,
    )  # fmt: skip
    one.start()
    one.refused_lines = refused_lines
    yield one
    one.stop()


def test_the_relay_signs_and_names_the_generation(relay, driver):
    assert plain(relay.port, "PUT", "/global/rank_1", b"address")[0] == 200
    assert driver.heard == [("PUT", "/rendezvous/7/global/rank_1", b"address")]
    assert plain(relay.port, "GET", "/rank_and_size/host:0") == (200, b"1,2,0,1,0,2")


def test_the_relay_takes_no_pickled_addresses_and_no_huge_body(relay, driver):
    assert plain(relay.port, "PUT", "/worker_addresses/host:0", b"x")[0] == 403
    assert plain(relay.port, "PUT", "/rank_and_size/host:0", b"9,9")[0] == 403
    assert plain(relay.port, "PUT", "/global/0", b"", {"Content-Length": str(2**30)})[0] == 413
    assert not driver.heard


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_the_relay_hears_its_own_user_only(relay, driver):
    script = (
        f"exec 3<>/dev/tcp/127.0.0.1/{relay.port};"
        " printf 'GET /global/rank_0 HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n' >&3; head -n 1 <&3"
    )
    other = subprocess.run(
        ["/bin/bash", "-c", script], user=65534, group=65534, extra_groups=[], cwd="/",
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert other.stdout.split()[1] == "403"
    assert "belongs to user 65534" in relay.refused_lines[0]
    assert not driver.heard


def test_the_relay_says_that_the_driver_is_away(relay, driver):
    driver.stop()
    assert plain(relay.port, "GET", "/global/rank_0")[0] == 503


def test_an_unknown_connection_has_no_owner():
    assert owner_of_peer(("127.0.0.1", 1), ("127.0.0.1", 2)) is None
