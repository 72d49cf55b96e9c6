"""`howdah serve --on ray` as a client, an operator and a signal meet it, with a real Ray Serve."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from howdah.core.processes import LIMITS, marked
from tests import ROOT
from tests.runs import servers
from tests.runs.finished_runs import two_versions
from tests.support.waiting import wait_until

pytestmark = pytest.mark.full

LIMIT = 180
MARK = "HOWDAH_TEST_MARK"


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny_model_dir) -> str:
    """A publish.directory with two versions of zoo."""
    return two_versions(tmp_path_factory.mktemp("models"), tiny_model_dir)


class Server:
    """A `howdah serve` process."""

    def __init__(self, models: str, home, *words: str, limits: dict | None = None) -> None:
        self.mark = f"serve-{os.getpid()}-{home.name}"
        self.home = home
        # Ray's directory needs a short path; a killed server leaves it.
        self.scratch = tempfile.mkdtemp(prefix="hd-")
        self.errors = open(home / "stderr", "w+")  # noqa: SIM115 - closed by `end`
        self.process = subprocess.Popen(
            [sys.executable, "-m", "howdah.cli", "serve", "--on", "ray", "--port", "0", "--json",
             "--set", f"publish.directory={models}", *words],
            stdout=subprocess.PIPE, stderr=self.errors, text=True, start_new_session=True,
            env={**os.environ, MARK: self.mark, "PYTHONPATH": str(ROOT), "HOME": str(home),
                 "TMPDIR": self.scratch, LIMITS: json.dumps(limits or {}),
                 "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        self.url = ""

    def wait_until_ready(self) -> dict:
        line = self.process.stdout.readline()
        assert line, self.output()
        ready = json.loads(line)
        self.url = ready["url"]
        return ready

    def output(self) -> str:
        self.errors.flush()
        return (self.home / "stderr").read_text()

    def left(self) -> list[str]:
        """Command lines of the processes that it has started and that live."""
        command_lines = []
        for pid in marked(MARK, self.mark):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    command_lines.append(" ".join(process.cmdline()) or process.name())
        return command_lines

    def ask(self, path="/v1/classify", body: object = None, method=None, host=None, token=None):
        """(status, JSON) of a request; bytes are sent as they are."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        headers = {} if host is None else {"Host": host}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=LIMIT) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def replicas(self, deployment: str = "model-0") -> list[psutil.Process]:
        """Processes of a deployment: a model's replicas, or those of the server."""
        pids, processes = marked(MARK, self.mark), []
        for process in psutil.process_iter(["cmdline"]):
            line = " ".join(process.info["cmdline"] or [])
            if f"ServeReplica:howdah:{deployment}" in line and process.pid in pids:
                processes.append(process)
        return processes

    def end(self, number: int) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=LIMIT)
        self.errors.close()
        return self.process.returncode


@pytest.fixture
def start(models, tmp_path):
    started = []

    def go(*words: str, **more) -> Server:
        started.append(Server(models, tmp_path, *words, **more))
        return started[-1]

    yield go
    for server in started:
        server.end(signal.SIGKILL)
        for pid in marked(MARK, server.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(server.scratch, ignore_errors=True)


def test_two_versions_answer_refuse_recover_and_end_with_a_ctrl_c(start):
    server = start("--model", "zoo@1", "--and", "zoo", "--share", "0.5", "--queue", "2")
    ready = server.wait_until_ready()
    assert [(one["name"], one["version"]) for one in ready["models"]] == [("zoo", 1), ("zoo", 2)]
    status, health = server.ask("/health")
    assert (status, health["status"], health["share"]) == (200, "ok", 0.5)
    assert [one["run_id"] for one in health["models"]] == ["run-1", "run-2"]
    assert "path" not in health["models"][0]  # the server's directories are its own
    ours = [one for one in psutil.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    port = int(server.url.rsplit(":", 1)[1])
    assert {one.laddr.ip for one in ours if one.laddr.port == port} == {"127.0.0.1"}

    # Both versions answer, and a key always meets the same one.
    by_key = {}
    for number in [*range(8), *range(8)]:
        status, answer = server.ask(body={"text": "the cat and a dog", "key": f"user-{number}"})
        assert status == 200 and answer["model"] == "zoo"
        assert answer["run_id"] == f"run-{answer['version']}"
        assert set(answer["prediction"]["scores"]) == {"cat", "dog"}
        assert by_key.setdefault(number, answer["version"]) == answer["version"]
    assert set(by_key.values()) == {1, 2}
    status, answer = server.ask(body={"texts": ["the cat", ""]})
    assert status == 200 and answer["predictions"][1]["error"] == "the text is empty"

    # Bad input: what, expected, got; and nothing breaks by it.
    for path, body, method, code, word in (
        ("/v1/classify", b"{", None, 400, "not JSON"),
        ("/v1/classify", {"texts": ["a", 3]}, None, 422, "not a string"),
        ("/v1/classify", {"texts": ["a"] * 33}, None, 413, "too many texts"),
        ("/v1/classify", None, "GET", 405, "does not accept this method"),
        ("/predict", {"inputs": ["a", 3]}, None, 422, "not a string"),
        ("/health", {}, "POST", 405, "does not accept this method"),
        ("/nothing", {}, None, 404, "no such path"),
        ("/v1/classify", b" " * (2 * 2**20 + 1), None, 413, "too large"),
        ("/predict", b" " * (2 * 2**20 + 1), None, 413, "too large"),
    ):
        status, answer = server.ask(path, body, method)
        assert (status, word in answer["what"]) == (code, True), answer
        assert answer["expected"] and "Traceback" not in json.dumps(answer)

    # A body without a length is counted while it arrives.
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
    with contextlib.closing(connection):
        connection.request("POST", "/v1/classify", iter([b" " * 2**20] * 3))
        assert connection.getresponse().status == 413

    assert server.ask("/health", host="evil.example")[0] == 403
    assert server.ask(body={"text": "the cat"}, host="evil.example")[0] == 403
    assert server.ask("/health", host=f"localhost:{port}")[0] == 200

    # More than the queues hold: some are answered, the others refused at once.
    big = {"texts": ["the cat and the dog " * 20] * 32}
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        statuses = list(pool.map(lambda _: server.ask(body=big)[0], range(80)))
    assert set(statuses) == {200, 429}

    # A replica that is killed is replaced.
    (replica,) = server.replicas()
    replica.kill()
    first = next(number for number, version in by_key.items() if version == 1)
    text = {"text": "the cat", "key": f"user-{first}"}
    wait_until(lambda: server.ask(body=text)[0] == 200, LIMIT)

    assert len(server.left()) > 5
    assert server.end(signal.SIGINT) == 130
    assert server.left() == []
    assert "Traceback" not in (server.home / "stderr").read_text()
    assert not (server.home / ".ray").exists()  # the token was its own
    assert not [name for name in os.listdir(server.scratch) if name.startswith("hd-")]


TENSOR = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["the cat", "a dog"]}
LIBRARIES = ("libtorch", "libtensorflow", "onnxruntime")


def libraries_of(process: psutil.Process) -> set[str]:
    """Which of LIBRARIES a process has in its memory."""
    files = " ".join(one.path for one in process.memory_maps())
    return {name for name in LIBRARIES if name in files}


def test_ray_answers_as_the_plain_server_does_and_asks_for_the_same_tokens(start, models, tmp_path):
    old, new = "0123456789abcdef-of-the-old-client", "0123456789abcdef-of-the-new-client"
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{old}\n{new}\n")
    os.chmod(tokens, 0o600)
    ray = start(
        "--model", "zoo@1", "--set", f"serve.token_file={tokens}", limits={"reload_seconds": 0.1}
    )
    ready = ray.wait_until_ready()
    assert ready["port"] == int(ray.url.rsplit(":", 1)[1]) and ready["pid"] == ray.process.pid
    status, refusal = ray.ask(body={"text": "the cat"})
    assert (status, refusal["error_type"]) == (401, "NoToken")
    assert ray.ask(body={"text": "the cat"}, token="another" * 4)[0] == 401
    assert ray.ask("/v2/models/zoo")[0] == 401
    for path in ("/health", "/v2/health/live", "/v2/health/ready"):
        assert ray.ask(path)[0] == 200
    wait_until(lambda: "refused: a request from 127.0.0.1 with no token" in ray.output(), LIMIT)

    (tmp_path / "plain").mkdir()
    plain = servers.Server(Path(models).parent, tmp_path / "plain", "--model", "zoo@1")
    try:
        plain.wait_until_ready()
        for path, body in (
            ("/v1/classify", {"texts": ["the cat", "a dog", ""], "key": "user-17"}),
            ("/v1/classify", {"text": "the cat and a dog"}),
            ("/predict", {"inputs": [["the cat"], ["a dog"]]}),
            ("/predict", {"inputs": [["the cat"], [""]]}),
            ("/v2/models/zoo/infer", {"id": "q-7", "inputs": [TENSOR]}),
            ("/v2/models/zoo/versions/1/infer", {"inputs": [TENSOR]}),
            ("/v2/models/zoo/versions/2/infer", {"inputs": [TENSOR]}),
            ("/v2/models/zoo", None),
            ("/v2", None),
            ("/health", None),
            ("/openapi.json", None),
        ):
            assert ray.ask(path, body, token=new) == plain.ask(path, body), path
    finally:
        plain.end()

    (server,), (replica,) = ray.replicas("server"), ray.replicas()
    assert libraries_of(server) == set() and libraries_of(replica) != set()

    tokens.write_text(f"{new}\n")
    wait_until(lambda: ray.ask(body={"text": "the cat"}, token=old)[0] == 401, LIMIT)
    assert ray.ask(body={"text": "the cat"}, token=new)[0] == 200
    wait_until(lambda: "the tokens were read again: 1" in ray.output(), LIMIT)
    assert ray.end(signal.SIGTERM) == 143
    assert "Traceback" not in (ray.home / "stderr").read_text()


def test_load_makes_a_second_replica_appear(start):
    """It is idle for less than the delay of scaling down, so that both are there afterwards."""
    server = start("--model", "zoo", "--replicas", "1:2")
    server.wait_until_ready()
    assert server.ask(body={"text": "the cat"})[0] == 200
    assert len(server.replicas()) == 1
    scaled, statuses = threading.Event(), []

    def load() -> None:
        while not scaled.is_set():
            statuses.append(server.ask(body={"texts": ["the cat and the dog"] * 32})[0])

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asking = [pool.submit(load) for _ in range(8)]
        try:
            wait_until(lambda: len(server.replicas()) == 2, LIMIT)
        finally:
            scaled.set()
    for one in asking:
        one.result()
    assert set(statuses) <= {200, 429} and 200 in statuses
    assert len(server.replicas()) == 2
    assert server.ask(body={"text": "the cat"})[0] == 200
    assert server.end(signal.SIGINT) == 130
    assert server.left() == []


@pytest.mark.parametrize("when", ["starting", "serving"])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_no_process_is_left_by_a_server_that_is_ended(start, when, number, code):
    server = start("--model", "zoo")
    if when == "serving":
        server.wait_until_ready()
        assert server.ask(body={"text": "the cat"})[0] == 200
    else:
        wait_until(lambda: any("gcs_server" in line for line in server.left()), LIMIT)
    assert server.end(number) == code
    wait_until(lambda: not server.left(), LIMIT)  # after SIGKILL the kernel ends them


def test_a_model_that_does_not_open_ends_the_command_with_its_error(start, models):
    export = f"{models}/zoo/v=1/model.safetensors"
    whole = open(export, "rb").read()  # noqa: SIM115
    try:
        with open(export, "wb") as file:
            file.write(whole[: len(whole) // 2])
        server = start("--model", "zoo/v=1")
        assert server.process.wait(LIMIT) == 5
        assert "could not start the models" in server.output()
        assert server.left() == []
    finally:
        with open(export, "wb") as file:
            file.write(whole)
