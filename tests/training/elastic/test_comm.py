"""One process in several worlds, by each carrier: lost, missing and stopped ranks."""

from __future__ import annotations

import http.server
import itertools
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from tests.runs.jobs.local_jobs import ROOT
from tests.support.by_default import either

pytestmark = pytest.mark.mpi

LIMIT = 120  # seconds; detects a hang
FRAMEWORKS = ["torch", pytest.param("tensorflow", marks=pytest.mark.full), "torch.distributed"]
FRAMEWORKS.append(pytest.param("torch.rendezvous", marks=pytest.mark.full))
CARRIERS = ("tensorflow", "torch", "torch.distributed", "torch.rendezvous")


class Store(http.server.BaseHTTPRequestHandler):
    """A minimal key-value store for Gloo."""

    def do_PUT(self):
        self.server.values[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(200, b"")

    def do_GET(self):
        value = self.server.values.get(self.path)
        self._answer(404 if value is None else 200, value or b"")

    def do_DELETE(self):
        self._answer(200, b"")

    def _answer(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_): ...


def torch_ranks(size: int, where: dict) -> list[dict]:
    return [
        {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(size),
            **where,
        }
        for rank in range(size)
    ]


@pytest.fixture
def join(tmp_path):
    """Start a store for a new world; returns its ranks' environments."""
    servers, files = [], itertools.count()

    def world(size: int, timeout: int, framework: str) -> list[dict]:
        if framework == "torch.distributed":
            store = str(tmp_path / f"ranks-{next(files)}")
            return torch_ranks(size, {"HOWDAH_STORE": store, "LIMIT": str(timeout)})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Store)
        server.daemon_threads, server.values = True, {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        if framework == "torch.rendezvous":  # as in a job: collectives have no limit
            where = {
                "HOWDAH_RENDEZVOUS": f"127.0.0.1:{server.server_port}",
                "HOWDAH_JOIN_SECONDS": str(timeout),
                "GLOO_SOCKET_IFNAME": "lo",
                "LIMIT": "600",
            }
            return torch_ranks(size, where)
        return [
            {
                "HOROVOD_RANK": str(rank),
                "HOROVOD_SIZE": str(size),
                "HOROVOD_LOCAL_RANK": str(rank),
                "HOROVOD_LOCAL_SIZE": str(size),
                "HOROVOD_CROSS_RANK": "0",
                "HOROVOD_CROSS_SIZE": "1",
                "HOROVOD_HOSTNAME": "localhost",
                "HOROVOD_CONTROLLER": "gloo",
                "HOROVOD_CPU_OPERATIONS": "gloo",
                "HOROVOD_GLOO_IFACE": "lo",
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(server.server_port),
                "HOROVOD_GLOO_TIMEOUT_SECONDS": str(timeout),
                "LIMIT": str(timeout),
            }
            for rank in range(size)
        ]

    yield world
    for server in servers:
        server.shutdown()
        server.server_close()


class Rank:
    """A worker process."""

    def __init__(self, framework: str, log) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.workers.elastic_comm", framework],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )

    def ask(self, **what) -> None:
        print(json.dumps(what), file=self._process.stdin, flush=True)

    def answer(self) -> dict:
        """The next line of its output; {"died": exit code} where it has died."""
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"died": self._process.wait()}

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def ranks(tmp_path):
    """Starts ranks whose framework is loaded; a watchdog ends them if a test hangs."""
    made: list[Rank] = []
    watchdog = threading.Timer(LIMIT, lambda: [one.signal(signal.SIGKILL) for one in made])
    watchdog.start()

    def start(framework: str, count: int) -> list[Rank]:
        with open(tmp_path / "ranks.log", "ab") as log:
            new = [Rank(framework, log) for _ in range(count)]
        made.extend(new)
        assert all("ready" in one.answer() for one in new)
        return new

    yield start
    watchdog.cancel()
    for one in made:
        one.end()


def together(members: list[Rank], envs: list[dict]) -> None:
    """They form a world, and its sums are right."""
    for one, env in zip(members, envs, strict=True):
        one.ask(env=env, limit=env["LIMIT"])
    assert [one.answer() for one in members] == [{"joined": len(envs)}] * len(members)
    for number, one in enumerate(members):
        one.ask(sum=2.0**number)
    if len(envs) > 1:
        assert [one.answer() for one in members] == [{"sum": 2.0 ** len(envs) - 1}] * len(envs)


@pytest.mark.parametrize(
    "framework", ["torch.rendezvous", pytest.param("torch.distributed", marks=pytest.mark.full)]
)
def test_compressed_messages_have_groups_of_their_own_in_each_world(ranks, join, framework):
    """A job's rendezvous is a store in Python, which further groups need as long as a world is."""
    members = ranks(framework, 3)
    for size in (2, 3):
        together(members[:size], join(size, 60, framework))
        for number, one in enumerate(members[:size]):
            one.ask(exchange=2.0**number)
        sums = [one.answer() for one in members[:size]]
        assert sums == [{"exchange": 2.0**size - 1}] * size


@pytest.mark.full  # a real job's ranks are killed in tests/training/elastic/test_elastic.py
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_after_a_killed_rank_the_others_form_another_world(ranks, join, framework):
    first, second, third = ranks(framework, 3)
    together([first, second, third], join(3, 60, framework))
    first.ask(sum=1.0)
    third.ask(sum=1.0)
    second.signal(signal.SIGKILL)
    assert "lost" in first.answer() and "lost" in third.answer()
    (fourth,) = ranks(framework, 1)
    # Their ranks change as well: the third becomes the second.
    together([first, third, fourth], join(3, 60, framework))


@pytest.mark.parametrize("framework", either("torch.rendezvous", CARRIERS))
def test_a_missing_rank_fails_the_forming_world_not_the_process(ranks, join, framework):
    first, second, third = ranks(framework, 3)
    together([first, second], join(2, 60, framework))
    incomplete = join(3, 3, framework)[:2]  # no process is the third
    for one, env in zip((first, second), incomplete, strict=True):
        one.ask(env=env, limit=env["LIMIT"])
    assert "lost" in first.answer() and "lost" in second.answer()
    together([first, second, third], join(3, 60, framework))


@pytest.mark.parametrize("framework", either("torch.distributed", CARRIERS))
def test_giving_up_a_stopped_rank_ends_the_others_collective(ranks, join, framework):
    first, second, third = ranks(framework, 3)
    # Gloo itself would wait for ten minutes.
    together([first, second, third], join(3, 600, framework))
    second.signal(signal.SIGSTOP)
    first.ask(sum=1.0, give_up=1)
    third.ask(sum=1.0, give_up=1)
    assert "lost" in first.answer() and "lost" in third.answer()
    together([third, first], join(2, 60, framework))
