"""What an agent tells its driver, however long it is, and when it takes its driver to be lost."""

import json
import threading

import pytest

from howdah.core import shorten
from howdah.jobs.agent import driver_connection
from howdah.jobs.agent.driver_connection import DriverConnection
from howdah.jobs.net import wire, wire_server
from howdah.jobs.net.signing import new_key
from howdah.jobs.net.wire_server import BODY_LIMIT, Server
from howdah.jobs.training_process import parse_message
from howdah.training.elastic.control_channel import ControlChannel
from tests.support.jobs.foreign_servers import FOREIGN, foreign
from tests.support.waiting import wait_until


class Driver:
    """A signed server that takes what agents tell it."""

    def __init__(self):
        self.key, self.events, self.states, self.sizes = new_key(), [], [], []
        self.orders = []
        self.answers = {
            "/register": lambda message: {"welcome": True, "application": "a"},
            "/poll": self._poll,
            "/report": self._report,
        }
        self.server = Server(
            "127.0.0.1", None, self.key, signed=self._signed, page=None, refused=print
        )
        self.server.start()

    def _signed(self, method, path, body):
        self.sizes.append(len(body))
        answer = self.answers[path](json.loads(body))
        if answer is None:
            return 410, "text/plain", b"not a worker of this job\n"
        return 200, "application/json", json.dumps(answer).encode()

    def _poll(self, message):
        threading.Event().wait(0.1)
        return {"orders": [one for one in self.orders if one[0] > message["have"]]}

    def _report(self, message):
        seen = self.events[-1][0] if self.events else 0
        self.events += [one for one in message["events"] if one[0] > seen]
        self.states.append(message["state"])
        return {"taken": True, "again": 0.1}

    def agent(self, order=lambda order: None, patience=60.0, port=None):
        """A link to this driver, or to what listens at another port in its place."""
        lost = []
        client = wire.Client("127.0.0.1", port or self.server.port, self.key)
        link = DriverConnection(
            client, "me", on_order=order, on_lost=lambda: lost.append(True), patience=patience
        )
        link.losses = lost
        return link


@pytest.fixture
def driver():
    one = Driver()
    yield one
    one.server.stop()


ERROR = {"error": "DataError", "what": "cannot read", "got": "x" * 2_000_000 + " the cause"}


def talk(link):
    """200 lines of 6 kB on rank 0's console, and an end with an error text of 2 MB."""
    for number in range(200):
        link.forward(1, {"type": "say", "line": f"{number} " + "wide " * 1200})
    link.forward(1, {"type": "failed", "exit_code": 3, "error": ERROR, "consequence": False})
    link.event(
        {"type": "exited", "process": 1, "exit_code": 3, "failure": {"error": ERROR},
         "lines": ["\N{SNOWMAN}" * 1000] * 3000}
    )  # fmt: skip


def check(driver, link):
    """All of it has come, in its order, with its cause, and no agent was lost."""
    link.flush(60.0)
    assert not link.losses
    numbers, events = zip(*driver.events, strict=True)
    assert list(numbers) == list(range(1, 203))
    assert [event["line"].split()[0] for event in events[:200]] == [str(n) for n in range(200)]
    assert "characters left out" in events[0]["line"]
    failed, exited = events[200:]
    assert failed["error"]["error"] == "DataError"
    assert failed["error"]["got"].startswith("xxx")
    assert failed["error"]["got"].endswith(" the cause")
    assert "2,000,010 characters left out" in failed["error"]["got"]
    assert (exited["exit_code"], exited["failure"]["error"]["what"]) == (3, "cannot read")
    assert any("lines left out" in line for line in exited["lines"])


def test_a_lot_to_tell_costs_no_agent_its_driver(driver):
    link = driver.agent()
    link.register("n", {})
    talk(link)
    check(driver, link)
    assert max(driver.sizes) < BODY_LIMIT / 2


def test_reports_are_made_smaller_for_a_driver_that_refuses_their_size(driver, monkeypatch):
    monkeypatch.setattr(wire_server, "BODY_LIMIT", 20_000)
    link = driver.agent()
    talk(link)  # before it is known what the driver takes
    link.register("n", {})
    check(driver, link)
    assert max(driver.sizes) <= 20_000


def test_a_driver_that_takes_nothing_is_lost(driver, monkeypatch):
    link = driver.agent()
    link.register("n", {})
    monkeypatch.setattr(wire_server, "BODY_LIMIT", 100)
    link.event({"type": "started", "process": 1, "pid": 1})
    wait_until(lambda: link.losses)


def test_a_state_that_is_too_long_is_cut(driver):
    link = driver.agent()
    link.register("n", {})
    link.forward(1, {"type": "beat", "phase": "wait", "n": 1, "doing": "d" * 2_000_000})
    wait_until(lambda: any("beat" in state for state in driver.states))
    state = next(state for state in driver.states if "beat" in state)
    assert state["beat"]["phase"] == "wait" and state["beat_age"] >= 0
    assert "characters left out" in state["beat"]["doing"]
    assert not link.losses


# --------------------------------------------------------------------------------- cut messages
def test_what_a_training_process_says_is_one_line_that_its_agent_takes():
    import socket

    ours, theirs = socket.socketpair()
    link = ControlChannel(theirs.detach())
    got = []
    reading = threading.Thread(target=lambda: got.append(ours.makefile("rb").readline(2**20)))
    reading.start()
    link.send("failed", exit_code=3, error=ERROR, consequence=False)
    reading.join(30)
    message = parse_message(got[0])
    assert message["exit_code"] == 3 and message["error"]["got"].endswith(" the cause")
    ours.close()


@pytest.mark.parametrize(
    "value",
    [
        {"type": "x", "a": "\N{SNOWMAN}" * 10**5},
        {"type": "x", "a": ["line"] * 10**5},
        {"type": "x", "a": [{"b": "y" * 10**4} for _ in range(100)]},
        {"type": "x", "a": list(range(10**5))},
        {"type": "x", **{str(number): number for number in range(10**4)}},
        {"type": "x", "k" * 10**5: 1},
    ],
)
@pytest.mark.parametrize("most", [300, 5000, 10**5])
def test_every_message_can_be_made_to_fit(value, most):
    short = shorten.message(value, most)
    assert len(json.dumps(short)) <= most
    assert short["type"] == "x"


def test_a_message_that_fits_is_left_as_it_is():
    value = {"type": "x", "a": ["b" * 100] * 100, "c": None}
    assert shorten.message(value, 20_000) == value
    assert shorten.text("short", 5) == "short"
    assert shorten.text("a" * 75 + "-" * 900 + "z" * 25, 100) == (
        "a" * 75 + "\n[... 900 of 1,000 characters left out ...]\n" + "z" * 25
    )


# ----------------------------------------------------------------------------- a driver is lost
def orders(count):
    return [[n, {"type": "kill", "process": 1, "why": "w"}] for n in range(1, count + 1)]


def test_orders_come_once_each_and_in_their_sequence(driver):
    got = []
    driver.orders = orders(3)
    link = driver.agent(order=got.append)
    link.register("n", {})
    wait_until(lambda: len(got) == 3)
    driver.orders = orders(5)
    wait_until(lambda: len(got) == 5)
    assert got == [order for _, order in orders(5)]


@pytest.mark.parametrize("kind", [kind for kind in FOREIGN if kind not in ("silence",)])
def test_a_driver_whose_place_another_has_taken_is_lost(driver, monkeypatch, kind):
    monkeypatch.setattr(driver_connection, "_CALL_SECONDS", 0.5)
    link = driver.agent(patience=0.5)
    link.register("n", {})
    with foreign(kind) as (port, _):
        link._client._where = ("127.0.0.1", port)
        driver.server.stop()
        wait_until(lambda: link.losses)
    assert link.losses == [True]


def test_an_answer_of_another_is_no_loss(driver):
    """A message of another server at the driver's address ends no training."""
    got = []
    link = driver.agent(order=got.append)
    link.register("n", {})
    where = link._client._where
    with foreign("a refusal") as (port, requests):
        link._client._where = ("127.0.0.1", port)
        # A connection to the driver that is not kept again: the next one leads to the other.
        wait_until(lambda: link._client.close() or len(requests) >= 2)
        link._client._where = where
    driver.orders = orders(1)
    wait_until(lambda: got)
    assert not link.losses


def test_a_driver_that_has_given_us_up_is_lost_at_once(driver):
    link = driver.agent()
    link.register("n", {})
    driver.answers["/poll"] = lambda message: None
    wait_until(lambda: link.losses)


@pytest.mark.parametrize("answer", [{}, {"orders": 3}, {"orders": [[1]]}, {"orders": [["1", {}]]}])
def test_a_thread_that_fails_is_a_loss(driver, answer, capfd):
    link = driver.agent()
    link.register("n", {})
    driver.answers["/poll"] = lambda message: answer
    wait_until(lambda: link.losses)
    assert "thread orders failed" in capfd.readouterr().err


def test_an_order_that_cannot_be_taken_is_a_loss(driver):
    def order(order):
        raise RuntimeError("not now")

    driver.orders = orders(1)
    link = driver.agent(order=order)
    link.register("n", {})
    wait_until(lambda: link.losses)
