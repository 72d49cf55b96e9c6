"""What strangers can hold of a driver or a relay, and answers that are not the driver's."""

import http.client
import json
import os
import resource
import socket
import subprocess
import sys
import threading

import pytest

from howdah.errors import ClusterError
from howdah.jobs.net import listener, signing, wire, wire_server
from howdah.jobs.net.refusals import Refusals
from howdah.jobs.net.signing import new_key
from howdah.jobs.net.wire_server import Server
from tests.runs.jobs.simulated_agents import ROOT
from tests.support.jobs.foreign_servers import FOREIGN, foreign
from tests.support.waiting import wait_until


class Driver:
    """A signed server that answers each request with `answer`, and notes what it refused."""

    def __init__(self):
        self.key, self.refused_lines, self.heard = new_key(), [], []
        self.page = lambda path: (200, "text/html", path.encode())
        self.server = Server(
            "127.0.0.1", None, self.key, signed=self._signed, page=lambda path: self.page(path),
            refused=self.refused_lines.append,
        )  # fmt: skip
        self.server.start()
        self.client = wire.Client("127.0.0.1", self.server.port, self.key)
        self._counter = 0

    def _signed(self, method, path, body):
        self.heard.append(path)
        return 200, "application/json", b'{"yes": true}'

    def connect(self, data=b""):
        end = socket.create_connection(("127.0.0.1", self.server.port), 30)
        end.sendall(data)
        return end

    def head(self, length, key=None):
        """The head of a request with a body of `length` bytes, signed with the key."""
        self._counter += 1
        headers = signing.request_headers(
            key or self.key, "POST", "/poll", "test", self._counter, bytes(length)
        )
        lines = ["POST /poll HTTP/1.1", f"Content-Length: {length}",
                 *(f"{name}: {value}" for name, value in headers.items()), "", ""]  # fmt: skip
        return "\r\n".join(lines).encode()


@pytest.fixture
def driver():
    one = Driver()
    yield one
    one.server.stop()


def http_threads():
    return sum(thread.name.startswith("http-") for thread in threading.enumerate())


def ended(end):
    """The bytes that came until the other side closed the connection."""
    came = b""
    try:
        while data := end.recv(2**16):
            came += data
    except ConnectionResetError:
        pass
    end.close()
    return came


# ----------------------------------------------------------------------------- their requests
def test_a_request_that_is_not_the_job_s_gets_no_thread_and_its_body_is_not_read(driver):
    before = http_threads()
    ends = [driver.connect(driver.head(2**19, new_key()) + bytes(2**12)) for _ in range(50)]
    assert all(ended(end).startswith(b"HTTP/1.1 403 ") for end in ends)
    assert http_threads() == before
    assert not driver.heard


def test_a_head_that_does_not_end_is_closed_in_time(driver, monkeypatch):
    monkeypatch.setattr(listener, "HEAD_SECONDS", 0.5)
    idle, slow = driver.connect(), driver.connect(b"POST /poll HT")
    begun = http_threads()

    def drip():
        with pytest.raises(OSError):
            while True:
                slow.sendall(b"x")
                threading.Event().wait(0.05)

    dripping = threading.Thread(target=drip)
    dripping.start()
    assert ended(idle) == b""
    dripping.join(30)
    assert not dripping.is_alive()
    assert http_threads() == begun
    assert "no complete request" in driver.refused_lines[0]


def test_a_head_without_an_end_is_refused(driver):
    end = driver.connect(b"GET / HTTP/1.1\r\nA: " + b"x" * 2**15)
    assert ended(end).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize(
    "data",
    [b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET /\r\n\r\n", b"GET \xe9 HTTP/1.1\r\n\r\n",
     b"GET / HTTP/1.1\r\n: x\r\n\r\n", b"GET / HTTP/1.1\r\nA : x\r\n\r\n",
     b"POST /poll HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n"],
)  # fmt: skip
def test_what_is_no_http_is_refused(driver, data):
    assert ended(driver.connect(data)).startswith(b"HTTP/1.1 400 ")
    assert driver.client.call("/poll", {}, 30) == {"yes": True}


def test_a_body_that_does_not_come_ends_its_connection_in_time(driver, monkeypatch):
    """Also of the job's own: the deadline is the whole request's, not each read's."""
    monkeypatch.setattr(wire_server, "_REQUEST_SECONDS", 0.5)
    end = driver.connect(driver.head(2**16))
    wait_until(lambda: http_threads() == 1)

    def drip():
        with pytest.raises(OSError):
            while True:
                end.sendall(b"x")
                threading.Event().wait(0.05)

    dripping = threading.Thread(target=drip)
    dripping.start()
    dripping.join(30)
    assert not dripping.is_alive()
    wait_until(lambda: http_threads() == 0)
    assert not driver.heard


@pytest.fixture
def small(monkeypatch):
    """The number of unverified connections that a server has room for."""
    monkeypatch.setattr(listener, "UNVERIFIED", 100)
    return 100


def test_connections_of_strangers_are_closed_for_each_other_alone(small, driver):
    assert driver.client.call("/poll", {}, 30) == {"yes": True}
    ends = [driver.connect(b"POST /poll HTTP/1.1\r\n") for _ in range(small + 50)]
    assert [ended(end) for end in ends[:50]] == [b""] * 50  # the oldest are closed
    assert driver.client.call("/poll", {}, 30) == {"yes": True}  # by its kept connection
    for _ in range(20):  # and by new ones
        new = wire.Client("127.0.0.1", driver.server.port, driver.key)
        assert new.call("/poll", {}, 30) == {"yes": True}
        new.close()
    assert "such connections are the limit" in driver.refused_lines[0]
    for end in ends[50:]:
        end.close()


def test_the_host_with_the_most_connections_makes_room(small, driver):
    few = [socket.create_connection(("127.0.0.1", driver.server.port), 30, ("127.0.0.2", 0))
           for _ in range(5)]  # fmt: skip
    many = [driver.connect(b"P") for _ in range(small + 20)]
    assert [ended(end) for end in many[:20]] == [b""] * 20
    for end in few:  # they are the oldest
        end.sendall(b"x\r\n\r\n")
        assert ended(end).startswith(b"HTTP/1.1 400 ")
    for end in many[20:]:
        end.close()


def test_pages_are_served_a_few_at_a_time(driver):
    go = threading.Event()
    driver.page = lambda path: (go.wait(60), (200, "text/html", path.encode()))[1]
    request = b"GET /page/x HTTP/1.1\r\n\r\n"
    held = [driver.connect(request) for _ in range(wire_server._PAGE_CONNECTIONS)]
    wait_until(lambda: http_threads() == len(held))
    assert ended(driver.connect(request)).startswith(b"HTTP/1.1 503 ")
    assert driver.client.call("/poll", {}, 30) == {"yes": True}
    go.set()
    assert all(ended(end).endswith(b"/page/x") for end in held)
    wait_until(lambda: http_threads() == 1)  # the client's
    assert ended(driver.connect(request)).startswith(b"HTTP/1.1 200 ")


def test_a_fault_in_answering_is_logged_once_and_costs_no_other_connection(driver, capfd):
    driver.page = lambda path: 1 / 0
    for _ in range(5):
        answer = ended(driver.connect(b"GET /page/x HTTP/1.1\r\n\r\n"))
        assert answer.startswith(b"HTTP/1.1 500 ")
    assert capfd.readouterr().err.count("ZeroDivisionError") == 1
    assert len(driver.refused_lines) == 1 and "ZeroDivisionError" in driver.refused_lines[0]


def test_a_fault_in_letting_in_costs_the_one_connection(driver, monkeypatch, capfd):
    right = signing.verified

    def verified(key, request, sessions):
        if request.path == "/odd":
            raise ValueError("odd")
        return right(key, request, sessions)

    monkeypatch.setattr(signing, "verified", verified)
    for _ in range(5):
        assert ended(driver.connect(b"PUT /odd HTTP/1.1\r\n\r\n")) == b""
    assert driver.client.call("/poll", {}, 30) == {"yes": True}
    assert capfd.readouterr().err.count("Traceback") == 1


# ------------------------------------------------------------------------------------ the log
def test_refusals_are_a_line_at_once_and_then_one_a_minute():
    now, lines = [0.0], []
    refusals = Refusals(lines.append, lambda: now[0])
    for number in range(1000):
        refusals.add(f"number {number}")
        now[0] += 0.1
    assert len(lines) == 2
    assert lines[0].startswith("number 0 ")
    assert lines[1].startswith("600 refusals since") and lines[1].endswith("number 600")
    now[0] += 60
    assert refusals.write_due()
    assert not refusals.write_due()
    assert lines[2].startswith("399 refusals since")


def test_a_thousand_refused_requests_are_one_line(driver):
    for _ in range(50):
        ends = [driver.connect(b"PUT / HTTP/1.1\r\n\r\n") for _ in range(20)]
        assert all(ended(end).startswith(b"HTTP/1.1 403 ") for end in ends)
    assert len(driver.refused_lines) == 1


# -------------------------------------------------------------------------------- descriptors
FULL = """
import os, resource, sys, time
from howdah.jobs.net.wire_server import Server
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
def signed(method, path, body):
    time.sleep(0.5)
    return 200, "application/json", b'{"cpu": %f}' % time.process_time()
server = Server("127.0.0.1", None, sys.argv[1], signed=signed, page=None,
                refused=lambda line: print(line, flush=True))
server.start()
others = [os.open(os.devnull, os.O_RDONLY)]
while others[-1] < 39:
    others.append(os.open(os.devnull, os.O_RDONLY))
for one in others[-4:]:
    os.close(one)
print(server.port, flush=True)
sys.stdin.read()
"""


def test_a_full_table_of_descriptors_costs_no_processor_time_and_passes():
    key = new_key()
    child = subprocess.Popen(
        [sys.executable, "-c", FULL, key], cwd=ROOT, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        port = int(child.stdout.readline())
        client = wire.Client("127.0.0.1", port, key)
        begun = client.call("/poll", {}, 30)["cpu"]
        ends = [socket.create_connection(("127.0.0.1", port), 30) for _ in range(60)]
        assert "cannot accept connections" in child.stdout.readline()
        cpu = [client.call("/poll", {}, 30)["cpu"] for _ in range(4)][-1]
        assert cpu - begun < 1.0  # of the two seconds, at least, that these four took
        for end in ends:
            end.close()
        fresh = wire.Client("127.0.0.1", port, key)
        wait_until(lambda: answers(fresh))
    finally:
        child.kill()
        child.wait()


def answers(client):
    try:
        return client.call("/poll", {}, 30)
    except ClusterError:
        return None


def test_a_driver_may_have_a_descriptor_for_each_agent(driver):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft >= min(hard, wire_server._DESCRIPTORS)


# ------------------------------------------------------------------------- answers of another
@pytest.mark.parametrize("kind", FOREIGN)
def test_nothing_that_answers_in_the_driver_s_place_is_believed(kind):
    with foreign(kind) as (port, _):
        client = wire.Client("127.0.0.1", port, new_key())
        with pytest.raises(ClusterError) as caught:
            client.call("/poll", {}, 1.0)
        assert not isinstance(caught.value, wire.Refused)


def test_a_driver_that_fails_at_a_request_says_so_with_its_signature(driver, capfd):
    driver.heard = None  # its handler fails
    with pytest.raises(ClusterError, match="failed to handle a message") as caught:
        driver.client.call("/poll", {}, 30)
    assert not isinstance(caught.value, wire.Refused)  # it is asked again
    assert "AttributeError" in capfd.readouterr().err


# --------------------------------------------------------------------------------- the relay
STRANGER = """
import encodings.idna, os, socket, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
port, count, data = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].encode()
ends = []
for number in range(count):
    end = socket.create_connection(("127.0.0.1", port), 30)
    try:
        end.sendall(data)
    except OSError:
        pass
    if sys.argv[4] == "close":
        end.close()
    ends.append(end)
print("sent", flush=True)
sys.stdin.read()
"""
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@pytest.fixture
def relay(driver):
    from howdah.jobs.net.relay import Relay

    refused_lines = []
    one = Relay(
        driver.client, None, assignment=lambda: (7, "0,1,0,1,0,1"), refused=refused_lines.append
    )
    one.start()
    one.refused_lines = refused_lines
    yield one
    one.stop()


def stranger(relay, count, data, then):
    """Another user's process that has sent this on so many connections."""
    one = subprocess.Popen(
        [sys.executable, "-c", STRANGER, str(relay.port), str(count), data, then],
        text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert one.stdout.readline() == "sent\n"
    return one


def ask(relay, method="GET", body=None):
    connection = http.client.HTTPConnection("127.0.0.1", relay.port, timeout=30)
    connection.request(method, "/global/rank_0", body)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


@root
def test_nothing_is_read_of_another_user_s_connection_to_the_relay(relay, driver):
    before = http_threads()
    other = stranger(relay, 300, "PUT /global/rank_0 HTTP/1.1\r\nContent-Length: 9999\r\n\r\nx",
                     "stay")  # fmt: skip
    assert http_threads() == before
    assert ask(relay) == (200, {"yes": True})
    assert len(relay.refused_lines) == 1 and "to user 65534" in relay.refused_lines[0]
    other.kill()
    other.wait()
    assert driver.heard == ["/rendezvous/7/global/rank_0"]


@root
@pytest.mark.parametrize("table", [False, True])
def test_a_connection_that_was_closed_at_once_is_not_taken_for_root_s(
    relay, driver, monkeypatch, table
):
    """The kernel names user 0 for what has no process any more, and this relay is root's."""
    if table:
        from howdah.jobs.net import peer_socket

        def away(peer, here):
            raise OSError("no sock_diag")

        monkeypatch.setattr(peer_socket, "_by_sock_diag", away)
    data = "PUT /global/rank_0 HTTP/1.1\r\nContent-Length: 1\r\n\r\nx"
    other = stranger(relay, 100, data, "close")
    assert ask(relay) == (200, {"yes": True})  # all that came before has been looked at
    other.kill()
    other.wait()
    assert driver.heard == ["/rendezvous/7/global/rank_0"]
