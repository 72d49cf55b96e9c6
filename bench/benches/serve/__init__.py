"""64 connections, one text a request: `howdah serve`, transformers.pipeline behind FastAPI, and
MLflow's own server (`mlflow models serve`, its transformers flavour), on one model and the same
texts, in turn.

The model is MiniLM's size with a classifier of two labels; texts are sentences of Python's manual,
of 4 to 60 words. All servers are up before the first round; those that are not asked only hold
memory. The client is one process with plain sockets. Bars: twice the pipeline's texts a second, and
less than 350 MB resident.

BENCH_ROUNDS (3), BENCH_SECONDS (15) of each server a round, BENCH_SERVERS (all; names by comma).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import socket
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench import harness
from howdah.core.child import Child
from tests import ROOT

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
SECONDS = float(os.environ.get("BENCH_SECONDS", "15"))
CONNECTIONS = 64
START_SECONDS = 240.0


@dataclass(frozen=True, kw_only=True)
class Stack:
    """One server."""

    title: str
    argv: Callable[[str, str, int], list[str]]
    """Builds the command from the model's directory, MLflow's copy of it and a port."""
    path: str
    body: Callable[[str], object]
    alive: str
    """A path that the server answers once it is ready."""


STACKS = {
    "howdah": Stack(
        title="howdah serve",
        argv=lambda model, _, port: [
            sys.executable, "-m", "howdah.cli", "serve", "--model", model, "--port", str(port)
        ],
        path="/v1/classify", body=lambda text: {"texts": [text]}, alive="/v2/health/ready",
    ),
    "pipeline": Stack(
        title="transformers.pipeline + FastAPI",
        argv=lambda model, _, port: [
            sys.executable, "-m", "bench.peers.pipeline_server", model, str(port)
        ],
        path="/predict", body=lambda text: {"texts": [text]}, alive="/openapi.json",
    ),
    "mlflow": Stack(
        title="mlflow models serve",
        argv=lambda _, saved, port: [
            sys.executable, "-m", "mlflow", "models", "serve", "-m", saved, "--env-manager",
            "local", "-h", "127.0.0.1", "-p", str(port),
        ],
        path="/invocations", body=lambda text: {"inputs": [text]}, alive="/ping",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Round:
    """The figures of one server in one round."""

    rate: float
    p50: float
    p95: float
    errors: int
    single_p50: float


def texts(count: int = 400) -> list[str]:
    """Sentences of Python's manual."""
    from pydoc_data.topics import topics

    words = re.findall(r"[A-Za-z][A-Za-z',]*", " ".join(topics[name] for name in sorted(topics)))
    rng = random.Random(0)
    rows, at = [], 0
    while len(rows) < count:
        length = min(60, max(4, round(rng.gammavariate(4.7, 5.3))))
        rows.append(" ".join(words[at : at + length]))
        at = (at + length) % (len(words) - 60)
    return rows


def export_model(directory: str) -> str:
    """MiniLM with a classifier of two labels, as an export."""
    from tests.runs.finished_runs import finished_run
    from tools import minilm

    base, pretrained = minilm.base_model(lambda line: print(line, file=sys.stderr))
    if not pretrained:
        raise SystemExit("the bench needs MiniLM's weights")
    return finished_run(f"{directory}/run", base, run_id="bench") + "/export"


SAVE = """
import sys, mlflow
from transformers import pipeline
classify = pipeline("text-classification", model=sys.argv[1])
mlflow.transformers.save_model(classify, sys.argv[2], pip_requirements=["transformers", "torch"])
"""


def save_for_mlflow(model: str, directory: str) -> str:
    """The model as MLflow's transformers flavour has it."""
    path = f"{directory}/mlflow"
    script = Path(directory) / "save.py"
    script.write_text(SAVE)
    argv = [sys.executable, str(script), model, path]
    with Child(argv, env=environment(), output=f"{directory}/save.log", grace=5) as child:
        if child.wait(START_SECONDS) != 0:
            raise SystemExit(Path(directory, "save.log").read_text()[-3000:])
    return path


def environment() -> dict[str, str]:
    """The environment of all servers: no GPU, no network, no telemetry."""
    return {
        **os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1",
        "USE_TF": "0", "MLFLOW_DISABLE_TELEMETRY": "true", "TOKENIZERS_PARALLELISM": "false",
        "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"],
    }  # fmt: skip


@contextlib.contextmanager
def started(name: str, model: str, saved: str, directory: str) -> Iterator[tuple[int, int]]:
    """(port, pid) of a server that answers."""
    stack = STACKS[name]
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    log = f"{directory}/{name}.log"
    argv = stack.argv(model, saved, port)
    with Child(argv, env=environment(), cwd=directory, output=log, grace=20) as child:
        until = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{stack.alive}", timeout=5):
                    break
            if not child.alive or time.monotonic() > until:
                raise SystemExit(f"{stack.title} does not start:\n{Path(log).read_text()[-3000:]}")
            time.sleep(0.2)
        yield port, child.pid


def resident(pid: int) -> float:
    """MB resident of a process and those below it. Pages that they share count once each."""
    process = psutil.Process(pid)
    return sum(one.memory_info().rss for one in [process, *process.children(recursive=True)]) / 1e6


# -------------------------------------------------------------------------------------- the client
async def ask(reader, writer, request: bytes) -> bool:
    """Send one request and read its answer; whether it is a 200."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    if length:
        await reader.readexactly(int(length[1]))
    else:  # chunked
        while (line := await reader.readline()) != b"0\r\n":
            await reader.readexactly(int(line, 16) + 2)
        await reader.readline()
    return head.startswith(b"HTTP/1.1 200")


def requests_of(stack: Stack, port: int) -> list[bytes]:
    """Every text's request."""
    requests = []
    for text in texts():
        body = json.dumps(stack.body(text)).encode()
        head = (
            f"POST {stack.path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        requests.append(head.encode() + body)
    return requests


async def load(stack: Stack, port: int, connections: int, seconds: float) -> tuple[list, int]:
    """(seconds of each answered request, errors) of clients that ask without a pause."""
    requests, times, errors = requests_of(stack, port), [], 0
    until = time.perf_counter() + seconds

    async def client(number: int) -> None:
        nonlocal errors
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        at = number * 7
        while time.perf_counter() < until:
            began = time.perf_counter()
            try:
                good = await ask(reader, writer, requests[at % len(requests)])
            except (OSError, asyncio.IncompleteReadError):
                good = False
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            if good:
                times.append((began, time.perf_counter() - began))
            else:
                errors += 1
            at += connections
        writer.close()

    await asyncio.gather(*(client(number) for number in range(connections)))
    return [took for began, took in times], errors


def measured(stack: Stack, port: int) -> Round:
    """One round of a server; the first seconds are not counted."""
    asyncio.run(load(stack, port, CONNECTIONS, 2))
    began = time.perf_counter()
    times, errors = asyncio.run(load(stack, port, CONNECTIONS, SECONDS))
    seconds = time.perf_counter() - began
    single, more = asyncio.run(load(stack, port, 1, SECONDS / 4))
    times.sort()
    return Round(
        rate=len(times) / seconds,
        p50=1e3 * statistics.median(times),
        p95=1e3 * times[int(0.95 * len(times))],
        errors=errors + more,
        single_p50=1e3 * statistics.median(single),
    )


def main() -> None:
    """Run the rounds and report."""
    chosen = os.environ.get("BENCH_SERVERS", ",".join(STACKS)).split(",")
    rounds: dict[str, list[Round]] = {name: [] for name in chosen}
    memory = {}
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as up:
        model = export_model(directory)
        saved = save_for_mlflow(model, directory) if "mlflow" in chosen else ""
        servers = {
            name: up.enter_context(started(name, model, saved, directory)) for name in chosen
        }
        for number in range(ROUNDS):
            for name, (port, _) in servers.items():
                one = measured(STACKS[name], port)
                rounds[name].append(one)
                print(f"round {number + 1}, {STACKS[name].title}: {one}", flush=True)
        memory = {name: resident(pid) for name, (_, pid) in servers.items()}
    harness.report(
        "serve", rows(rounds, memory), connections=CONNECTIONS, seconds=SECONDS,
        resident_mb=memory,
        rounds={name: [vars(one) for one in each] for name, each in rounds.items()},
    )  # fmt: skip


def rows(rounds: dict[str, list[Round]], memory: dict[str, float]) -> list[harness.Row]:
    """Ours beside each peer."""
    if "howdah" not in rounds:
        return []
    ours, table = rounds["howdah"], []
    for name, theirs in rounds.items():
        if name == "howdah":
            continue
        bar = ">= 2x" if name == "pipeline" else None
        errors = {"errors_peer": sum(one.errors for one in theirs),
                  "errors_ours": sum(one.errors for one in ours)}  # fmt: skip
        table.append(
            harness.Row(
                what=f"{CONNECTIONS} connections", unit="texts/s", peer=STACKS[name].title,
                peer_values=[one.rate for one in theirs], our_values=[one.rate for one in ours],
                bar=bar, notes=errors,
            )
        )  # fmt: skip
        for field, what in (("p50", "p50"), ("p95", "p95"), ("single_p50", "one connection, p50")):
            table.append(
                harness.Row(
                    what=what, unit="ms", peer=STACKS[name].title, lower_is_better=True,
                    peer_values=[getattr(one, field) for one in theirs],
                    our_values=[getattr(one, field) for one in ours],
                )
            )  # fmt: skip
        table.append(
            harness.Row(
                what="resident", unit="MB", peer=STACKS[name].title, lower_is_better=True,
                peer_values=[memory[name]], our_values=[memory["howdah"]], bar="< 350 MB",
            )
        )  # fmt: skip
    return table
