"""What one client can do to `howdah serve`: many connections, costly texts, damaged files, a model
that panics or hangs. The others are answered, and health within a second."""

import concurrent.futures
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from howdah.errors import ModelError
from tests import ROOT
from tests.contact.test_server_requests import Probe, exchange, get, post
from tests.runs.finished_runs import finished_run
from tests.runs.servers import LIMIT, Server, publish_version
from tests.support.waiting import wait_until

MIB = 2**20
EXPRESSION = "(a+)+$"


@pytest.fixture
def start(tmp_path, tiny_model_dir):
    """Starts servers of a model that is published as the test says; they end with the test."""
    servers = []

    def go(*words: str, base: str = tiny_model_dir, gate=None, limits=None, **more) -> Server:
        publish_version(tmp_path, base, 2, **more)
        servers.append(Server(tmp_path, tmp_path, *words, gate=gate, limits=limits))
        servers[-1].wait_until_ready()
        return servers[-1]

    yield go
    for server in servers:
        server.end(signal.SIGKILL)
        assert "Traceback" not in server.output()


@pytest.fixture
def descriptors():
    """This process may open as many connections as the test needs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect(server: Server, source: str = "127.0.0.1") -> socket.socket:
    address = ("127.0.0.1", server.port)
    return socket.create_connection(address, timeout=LIMIT, source_address=(source, 0))


# --------------------------------------------------------------------------------- connections
def test_idle_connections_of_one_address_and_of_many_give_way(start, descriptors):
    server = start()
    crowds = [("127.0.0.1", 510), ("127.0.0.2", 400), ("127.0.0.3", 300)]
    held = []
    try:
        probe = Probe(server)
        for source, count in crowds:
            for _ in range(count):
                held.append(connect(server, source))
                held[-1].sendall(get(b"/v2/health/live"))  # answered, and kept open
        assert server.ask(body={"text": "the cat"})[0] == 200
        probe.end()
        assert server.metric("howdah_connections") <= 1001
        assert held[-1].recv(65536).startswith(b"HTTP/1.1 200 ")  # the newest was served
    finally:
        for one in held:
            one.close()


def test_connections_that_are_all_busy_leave_the_other_addresses_room(start, descriptors):
    server = start(limits={"read_seconds": 60})
    part = post(b" " * 100)[:-50]
    held = [connect(server) for _ in range(500)]
    try:
        for one in held:
            one.sendall(part)
        wait_until(lambda: exchange_from("127.0.0.2", server, get(b"/metrics"))[0] == 200)
        wait_until(lambda: running(server) >= 500)
        # The connection above the limit gets its 503, though its body is never read.
        answers = exchange(server, post(b" " * 200_000), until_closed=True)
        assert answers.statuses == [503], answers
        assert exchange_from("127.0.0.2", server, get())[0] == 200
    finally:
        for one in held:
            one.close()


def running(server: Server) -> float:
    status, body = exchange_from("127.0.0.2", server, get(b"/metrics"))
    lines = [line for line in body.decode().splitlines() if line.startswith("howdah_connections ")]
    return float(lines[0].split()[1]) if status == 200 else 0.0


def exchange_from(source: str, server: Server, request: bytes) -> tuple[int, bytes]:
    with connect(server, source) as connection:
        connection.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
        data = b""
        while part := connection.recv(65536):
            data += part
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


# ------------------------------------------------------------------------------------- tokens
def test_a_wrong_token_ends_the_connection_and_its_address_is_named_once(start, tmp_path):
    path = tmp_path / "tokens"
    path.write_text("0123456789abcdef-of-a-client\n")
    path.chmod(0o600)
    server = start("--set", f"serve.token_file={path}")
    for _ in range(3):
        answers = exchange(server, post(b'{"text": "a"}', b"Authorization: Bearer x\r\n") * 3,
                         until_closed=True)  # fmt: skip
        assert answers.statuses == [401]
    lines = [
        line for line in server.output().splitlines() if "127.0.0.1 with another token" in line
    ]
    assert len(lines) == 1
    assert "0123456789" not in server.output()


def test_tokens_are_followed_and_one_may_be_for_metrics_alone(start, tmp_path):
    old, new, metrics = (f"0123456789abcdef-{name}" for name in ("old", "new", "prometheus"))
    path = tmp_path / "tokens"
    path.write_text(f"{old}\nmetrics {metrics}\n")
    path.chmod(0o600)
    server = start("--set", f"serve.token_file={path}", limits={"reload_seconds": 0.1})

    def status(token: str, at: str = "/openapi.json") -> int:
        return server.ask(at, Authorization=f"Bearer {token}")[0]

    assert (status(old), status(new), status(metrics)) == (200, 401, 401)
    assert (status(old, "/metrics"), status(metrics, "/metrics")) == (200, 200)
    replacement = tmp_path / "replacement"
    replacement.write_text(f"{new}\n")
    replacement.chmod(0o600)
    os.replace(replacement, path)
    wait_until(lambda: status(new) == 200)
    assert (status(old), status(metrics, "/metrics")) == (401, 401)
    path.write_text("short\n")  # cannot be used: what was read before stays
    wait_until(lambda: "the tokens stay as they were" in server.output())
    assert status(new) == 200


def test_a_file_of_metrics_tokens_alone_opens_no_server(tmp_path):
    from howdah.errors import ConfigError
    from howdah.serving.http import access

    path = tmp_path / "tokens"
    path.write_text("metrics 0123456789abcdef-prometheus\n")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="no usable token"):
        access.tokens(str(path))


# -------------------------------------------------------------------------------- costly texts
@pytest.mark.parametrize(
    "characters",
    [*(pytest.param(n, marks=pytest.mark.full) for n in (64_000, 112_000)), 2 * MIB - 100],
)
def test_comments_without_an_end_in_a_model_of_html(start, characters):
    server = start(clean={"html_tags": True})
    probe = Probe(server)
    began = time.monotonic()
    status, answer = server.ask(body={"text": "<!--" * (characters // 4)})
    assert status == 200 and answer["prediction"]["label"] == "cat"
    marks = "x" + "\u0301" * (characters // 8)
    assert server.ask(body={"text": marks})[0] == 200
    assert time.monotonic() - began < LIMIT / 4  # hours, by the square
    probe.end()


def test_commas_cost_no_memory_and_no_other_requests_time(start):
    """2 MB of them took 850 MB: an encoding has 400 bytes for each token, also of those cut off."""
    server = start()
    assert server.ask(body={"text": "the cat"})[0] == 200
    before = server.memory()
    probe = Probe(server)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        requests = [pool.submit(server.ask, body={"text": "," * 2_000_000}) for _ in range(8)]
        texts = {"texts": ["," * 65_000] * 32}
        requests += [pool.submit(server.ask, body=texts) for _ in range(4)]
        peak = before
        while not all(one.done() for one in requests):
            peak = max(peak, server.memory())
            time.sleep(0.02)
        assert [one.result()[0] for one in requests] == [200] * 12
    probe.end()
    assert server.ask(body=texts, X_Timeout_Ms=1)[0] == 504  # while it is cleaned or encoded
    wait_until(lambda: server.metric("howdah_queue_texts") == 0)
    assert peak - before < 300 * MIB


def test_many_elements_hold_no_connection(start):
    server = start()
    body = b'{"text": [' + b"[]," * 690_000 + b"1]}"
    probe = Probe(server)
    with concurrent.futures.ThreadPoolExecutor(20) as pool:
        for status in pool.map(lambda _: server.ask(body=body)[0], range(60)):
            assert status in (413, 429)
    probe.end()


# ------------------------------------------------------------------- a model that panics, or hangs
@pytest.fixture
def panicking_base(tmp_path, tiny_model_dir):
    """The tiny model with a tokenizer whose expression makes the library panic."""
    base = tmp_path / "base"
    base.mkdir()
    for name in os.listdir(tiny_model_dir):
        data = (open(os.path.join(tiny_model_dir, name), "rb")).read()  # noqa: SIM115
        (base / name).write_bytes(data)
    path = base / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    split = {"type": "Split", "pattern": {"Regex": EXPRESSION}, "behavior": "Isolated",
             "invert": False}  # fmt: skip
    tokenizer["pre_tokenizer"] = {
        "type": "Sequence", "pretokenizers": [split, tokenizer["pre_tokenizer"]],
    }  # fmt: skip
    path.write_text(json.dumps(tokenizer))
    return str(base)


def test_a_tokenizer_with_an_expression_of_its_own_is_refused(panicking_base):
    from howdah.data.encode import Encoder

    with pytest.raises(ModelError, match="not known to be safe") as caught:
        Encoder.load(panicking_base)
    assert caught.value.got == EXPRESSION


def test_a_panic_of_the_tokenizer_fails_its_request_alone(tmp_path, panicking_base, monkeypatch):
    from howdah.data import encode

    monkeypatch.setattr(encode, "KNOWN_EXPRESSIONS", frozenset({EXPRESSION}))
    publish_version(tmp_path, panicking_base, 2)
    words = ["serve", "--model", "zoo", "--port", "0", "--json", "--set",
             f"publish.directory={tmp_path}/models"]  # fmt: skip
    server = Server.__new__(Server)
    server.errors = tmp_path / "stderr"
    with open(server.errors, "wb") as errors:
        server.process = subprocess.Popen(
            [sys.executable, "-m", "tests.workers.trusting_server", *words],
            stdout=subprocess.PIPE, stderr=errors, text=True, cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "EXPRESSION": EXPRESSION,
                 "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
    try:
        server.wait_until_ready()
        assert server.ask(body={"text": "the cat"})[0] == 200
        probe = Probe(server)
        for _ in range(3):
            status, answer = server.ask(body={"text": "a" * 40 + "!"})
            assert (status, answer["error_type"], answer["got"]) == (500, "Broken", "ModelError")
            assert server.ask(body={"text": "the cat"})[0] == 200
        probe.end()
        assert "aaaaaaaa" not in server.output()
    finally:
        server.end(signal.SIGKILL)


def test_a_computation_that_hangs_is_not_ready_and_the_process_ends(start, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    server = start(gate=gate, limits={"grace_seconds": 0, "request_seconds": 2})
    assert server.ask(body={"text": "a"})[0] == 200
    gate.unlink()
    asking = threading.Thread(target=lambda: server.ask(body={"text": "a"}))
    asking.start()
    wait_until(lambda: server.ask("/v2/health/ready")[0] == 503)
    assert server.process.wait(LIMIT) != 0
    asking.join(LIMIT)
    assert "the model does not answer" in server.output()


# ------------------------------------------------------------------------------- damaged files
def test_a_pointer_that_is_a_named_pipe_is_an_error_and_later_looks_go_on(
    start, tmp_path, tiny_model_dir
):
    server = start(limits={"reload_seconds": 0.1})
    pointer = tmp_path / "models" / "zoo" / "current.json"
    whole = pointer.read_bytes()
    pointer.unlink()
    os.mkfifo(pointer)
    wait_until(lambda: "current.json cannot be read" in server.output())
    errors = server.metric("howdah_pointer_errors_total")
    wait_until(lambda: server.metric("howdah_pointer_errors_total") > errors)
    pointer.unlink()
    pointer.write_bytes(whole)
    wait_until(lambda: "can be read again" in server.output())
    publish_version(tmp_path, tiny_model_dir, 3)
    wait_until(lambda: server.ask(body={"text": "a"})[1]["version"] == 2)


@pytest.mark.parametrize("change", [{"n_layers": 10**9}, {"n_layers": 1}, {"dim": 16}])
def test_a_config_of_another_model_is_refused(tmp_path, tiny_model_dir, change):
    from howdah.models.opened.opened import open_model

    run = finished_run(str(tmp_path / "run"), tiny_model_dir, run_id="run-1")
    assert open_model(run, framework="onnx").max_length == 48
    path = tmp_path / "run" / "export" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(ModelError, match="does not describe the model in model"):
        open_model(run, framework="onnx")
