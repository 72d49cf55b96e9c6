"""`howdah serve` as a client, an operator and a signal meet it: a real process, real HTTP."""

import concurrent.futures
import json
import os
import re
import signal
import socket
import threading
import time

import numpy as np
import pytest

from howdah.cli import app, run
from tests.fixtures.airflow import browser  # noqa: F401
from tests.runs.servers import LIMIT, Server
from tests.support.waiting import wait_until

TENSOR = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["the cat", "a dog"]}
MIB = 2**20


@pytest.fixture(scope="module")
def server(zoo, tmp_path_factory):
    """One of version 2, which says "cat" of every text; a request must arrive within 2 s."""
    home = tmp_path_factory.mktemp("server")
    server = Server(zoo, home, limits={"read_seconds": 2, "max_queue": 64})
    server.wait_until_ready()
    yield server
    server.end(signal.SIGKILL)
    assert "Traceback" not in server.output()


# ------------------------------------------------------------------------------------ answers
def test_the_plain_face_names_model_version_and_run(server):
    status, headers, answer = server.whole(body={"texts": ["the cat and a dog", "", " \n"]})
    assert status == 200
    assert (answer["model"], answer["version"], answer["run_id"]) == ("zoo", 2, "run-2")
    assert (headers["X-Howdah-Version"], headers["X-Howdah-Run-Id"]) == ("2", "run-2")
    first, empty, spaces = answer["predictions"]
    assert first["label"] == "cat" and set(first["scores"]) == {"cat", "dog"}
    assert first["score"] == first["scores"]["cat"] > 0.5
    assert empty["error"] == spaces["error"] == "the text is empty"
    status, answer = server.ask(body={"text": "the cat"})
    assert (status, answer["prediction"]["label"]) == (200, "cat")


def test_a_score_does_not_depend_on_the_texts_beside_it(server):
    texts = ["the cat", "a dog " * 30, "one", "city of new york " * 12]
    _, together = server.ask(body={"texts": texts})
    for text, prediction in zip(texts, together["predictions"], strict=True):
        _, alone = server.ask(body={"text": text})
        assert alone["prediction"]["scores"] == prediction["scores"]


def test_text_embeddings_inference_is_answered_as_it_answers(server):
    status, one = server.ask("/predict", {"inputs": "the cat"})
    assert status == 200 and [set(label) for label in one] == [{"label", "score"}] * 2
    assert one[0]["label"] == "cat" and one[0]["score"] > one[1]["score"]
    status, several = server.ask("/predict", {"inputs": [["the cat"], ["a dog"]]})
    assert status == 200 and [labels[0]["label"] for labels in several] == ["cat", "cat"]
    status, answer = server.ask("/predict", {"inputs": [["the cat"], [""]]})
    assert (status, answer["where"], answer["error_type"]) == (422, "inputs[1]", "WrongShape")


def test_the_open_inference_protocol_by_hand(server):
    assert server.ask("/v2")[1]["name"] == "howdah"
    assert server.ask("/v2/health/live") == (200, {"live": True})
    assert server.ask("/v2/health/ready") == (200, {"ready": True})
    status, about = server.ask("/v2/models/zoo")
    assert status == 200 and about["versions"] == ["2"]
    assert [one["name"] for one in about["outputs"]] == ["label", "scores", "error"]
    assert about["outputs"][1] == {"name": "scores", "datatype": "FP32", "shape": [-1, 2]}
    assert about["parameters"]["labels"] == ["cat", "dog"]
    assert server.ask("/v2/models/zoo/versions/2/ready")[0] == 200
    # A version answers only if it is loaded, though version 1 is published.
    for path in ("/v2/models/zoo/versions/1/ready", "/v2/models/zoo/versions/1", "/v2/models/cow"):
        status, answer = server.ask(path)
        assert (status, answer["expected"]) == (404, "zoo, version 2")
    status, answer = server.ask(
        "/v2/models/zoo/versions/2/infer",
        {"id": "q-7", "inputs": [TENSOR], "outputs": [{"name": "scores"}, {"name": "label"}]},
    )
    assert status == 200
    assert (answer["model_name"], answer["model_version"], answer["id"]) == ("zoo", "2", "q-7")
    assert answer["parameters"]["run_id"] == "run-2"
    scores, label = answer["outputs"]
    assert (scores["shape"], len(scores["data"]), label["data"]) == ([2, 2], 4, ["cat", "cat"])
    wrong = {"inputs": [TENSOR], "outputs": [{"name": "colour"}]}
    assert server.ask("/v2/models/zoo/infer", wrong)[0] == 422


def test_tritons_own_client_is_answered(server):
    triton = pytest.importorskip(
        "tritonclient.http", reason="it needs older greenlet and ml-dtypes than the lock has"
    )
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    try:
        assert client.is_server_live() and client.is_server_ready()
        assert client.is_model_ready("zoo") and client.is_model_ready("zoo", "2")
        assert client.get_model_metadata("zoo")["inputs"][0]["datatype"] == "BYTES"
        texts = triton.InferInput("text", [2], "BYTES")
        texts.set_data_from_numpy(np.array(["the cat", ""], object), binary_data=False)
        outputs = [triton.InferRequestedOutput(name, binary_data=False)
                  for name in ("label", "scores", "error")]  # fmt: skip
        reply = client.infer("zoo", [texts], outputs=outputs, request_id="1")
        assert reply.get_response()["model_version"] == "2"
        assert reply.as_numpy("label").tolist() == ["cat", ""]
        scores = reply.as_numpy("scores")
        assert scores.dtype == np.float32 and scores.shape == (2, 2)
        assert scores[0].sum() == pytest.approx(1, abs=1e-5) and scores[1].tolist() == [0, 0]
        assert reply.as_numpy("error").tolist() == ["", "the text is empty"]
        texts.set_data_from_numpy(np.array(["the cat", ""], object))  # binary, as it comes
        reply = client.infer("zoo", [texts])
        assert reply.as_numpy("label").tolist() == [b"cat", b""]
        assert np.array_equal(reply.as_numpy("scores"), scores)
        classes = triton.InferRequestedOutput("scores", class_count=1)
        [best] = client.infer("zoo", [texts], outputs=[classes]).as_numpy("scores")[0]
        assert best.decode().split(":")[1:] == ["0", "cat"]
    finally:
        client.close()


def test_the_page_loads_nothing_from_elsewhere_and_the_schema_names_the_paths(server):
    server.ask(body={"text": "the cat"})
    server.ask(body=b"{")
    status, headers, page = server.whole("/")
    assert status == 200 and headers["Content-Type"].startswith("text/html")
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert headers["Cache-Control"] == "no-store"
    # The commands are those that work here, about one of the model's labels.
    text = "a message about cat"
    assert f"curl -s http://127.0.0.1:{server.port}/v1/classify" in page and "zoo" in page
    assert server.ask(body={"text": text})[0] == 200 and text in page
    assert "src=" not in page and "https://" not in page
    # The last hour: one request at least was answered, one refused, of this process alone.
    tiles = re.findall(r"<b>([^<]*)</b><span>(?:<abbr[^>]*>)?([^<]+)", page)
    figures = {name.strip(): value for value, name in tiles}
    assert int(figures["requests answered"]) >= 1 and int(figures["refused or failed"]) >= 1
    assert figures["median latency (p50)"].endswith(" ms")
    assert f"number {server.process.pid}" in page
    assert server.ask("/docs")[0] == 404
    _, schema = server.ask("/openapi.json")
    assert {"/v1/classify", "/predict", "/v2/models/{name}/infer", "/metrics"} <= set(
        schema["paths"]
    )
    assert "requestBody" in schema["paths"]["/v1/classify"]["post"]


# ------------------------------------------------------------------------------------ bad input
def texts_of(*texts) -> dict:
    return {"texts": list(texts)}


DEEP = b'{"texts": ' + b"[" * 9_000 + b"]" * 9_000 + b"}"


@pytest.mark.parametrize(
    ("path", "body", "headers", "status", "where"),
    [
        ("/v1/classify", b"", {}, 400, None),
        ("/v1/classify", b"{", {}, 400, None),
        ("/v1/classify", b"\xff\xfe{}", {}, 400, None),
        ("/v1/classify", DEEP, {}, 400, None),
        ("/v1/classify", b'{"texts": [' + b"1" * 5000 + b"]}", {}, 400, None),
        ("/v1/classify", b"[]", {}, 422, None),
        ("/v1/classify", b"{}", {}, 422, "text, texts"),
        ("/v1/classify", {"texts": "the cat"}, {}, 422, "texts"),
        ("/v1/classify", texts_of(), {}, 422, "texts"),
        ("/v1/classify", texts_of("a", 3), {}, 422, "texts[1]"),
        ("/v1/classify", texts_of("a", None), {}, 422, "texts[1]"),
        ("/v1/classify", texts_of("a", {"text": "b"}), {}, 422, "texts[1]"),
        ("/v1/classify", texts_of("lone \ud800"), {}, 422, "texts[0]"),
        ("/v1/classify", {"texts": ["a"], "model": "b"}, {}, 422, "model"),
        ("/v1/classify", texts_of(*["a"] * 33), {}, 413, "texts"),
        ("/v1/classify", texts_of(*["a"] * 10_000), {}, 413, "texts"),
        ("/v1/classify", b" " * (2 * MIB + 1), {}, 413, None),
        ("/v1/classify", texts_of("a" * (3 * MIB)), {}, 413, None),
        ("/v1/classify", texts_of("a"), {"Content_Encoding": "gzip"}, 415, "Content-Encoding"),
        ("/v1/classify", texts_of("a"), {"X_Timeout_Ms": "soon"}, 422, "X-Timeout-Ms"),
        ("/v1/classify", texts_of("a"), {"Host": "evil.example"}, 403, None),
        ("/predict", {"inputs": ["a", 3]}, {}, 422, "inputs"),
        ("/v2/models/zoo/infer", {"inputs": [{**TENSOR, "datatype": "FP32"}]}, {}, 422,
         "inputs[0].datatype"),
        ("/v2/models/zoo/infer", b"\x00" * 100, {"Inference_Header_Content_Length": 50}, 400, None),
        ("/v1/nothing", texts_of("a"), {}, 404, None),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_what_where_and_what_is_expected(
    server, path, body, headers, status, where
):
    code, answer = server.ask(path, body, "POST", **headers)
    assert (code, answer.get("where")) == (status, where), answer
    assert answer["what"] and answer["expected"] and answer["error"].startswith(answer["what"])
    assert "Traceback" not in json.dumps(answer)
    assert server.ask(body={"text": "the cat"})[0] == 200  # and nothing broke


@pytest.mark.parametrize(
    "text",
    ["a\x00b", "\x00", "\u202ereversed", "😀 " * 500, "x" * 100_000, "\ufffe", "e\u0301" * 4000,
     "<" * 50_000, "&" * 50_000],
)  # fmt: skip
def test_odd_texts_are_classified_or_have_an_error_of_their_own(server, text):
    status, answer = server.ask(body={"texts": [text, "the cat"]})
    assert status == 200
    odd, plain = answer["predictions"]
    assert plain["label"] == "cat"
    assert odd["label"] == "cat" or odd["error"] == "the text is empty"


def test_methods_and_heads_that_are_none(server):
    status, headers, answer = server.whole("/v1/classify", None, "GET")
    assert (status, headers["Allow"], answer["error_type"]) == (405, "POST", "WrongMethod")
    for path, methods in (("/", "GET, HEAD, POST"), ("/health", "GET, HEAD")):
        assert server.whole(path, None, "OPTIONS")[1]["Allow"] == methods
    for head in (b"GARBAGE\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000):
        assert b" 400 " in talk(server, head).partition(b"\r\n")[0]


def talk(server: Server, *parts: bytes, wait: bool = True) -> bytes:
    """What the server says to these bytes until it ends the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT) as connection:
        for part in parts:
            connection.sendall(part)
        received = b""
        try:
            while wait and (part := connection.recv(65536)):
                received += part
        except ConnectionResetError:
            pass
        return received


HEAD = b"POST /v1/classify HTTP/1.1\r\nHost: localhost\r\n"


def test_a_body_without_a_length_is_counted_while_it_is_read(server):
    part = b"%x\r\n" % MIB + b" " * MIB + b"\r\n"
    head = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
    reply = talk(server, head, part, part, part, b"0\r\n\r\n")
    assert b" 413 " in reply.partition(b"\r\n")[0] and b"too large" in reply
    # One that is declared, by a client that waits for leave: no byte of it is read.
    waiting = HEAD + b"Content-Length: 9000000\r\nExpect: 100-continue\r\n\r\n"
    reply = talk(server, waiting)
    assert b" 413 " in reply.partition(b"\r\n")[0] and b"100" not in reply.partition(b"\r\n")[0]


def test_a_slow_sender_is_answered_and_its_connection_ends(server):
    sent = (HEAD + b'Content-Length: 100\r\n\r\n{"te', b"POST /v1/cl", b"")
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for reply in pool.map(lambda part: talk(server, part), sent):
            assert b" 408 " in reply.partition(b"\r\n")[0]


def test_a_sender_that_aborts_leaves_nothing_behind(server):
    before = server.metric("howdah_requests_total", face="classify", code="499")
    for _ in range(5):
        talk(server, HEAD + b'Content-Length: 1000000\r\n\r\n{"texts": ["a', wait=False)
    wait_until(
        lambda: server.metric("howdah_requests_total", face="classify", code="499") == before + 5
    )
    assert server.metric("howdah_queue_texts") == 0


def test_what_is_counted_is_what_was_asked(server):
    names = ("howdah_labels_total", "howdah_tokens_total", "howdah_batch_texts_sum",
             "howdah_confidence_count", "howdah_request_seconds_count")  # fmt: skip
    before = {name: server.metric(name) for name in names}
    errors = server.metric("howdah_errors_total", reason="the text is empty")
    assert server.ask(body=texts_of("the house", "a river", ""))[0] == 200
    wait_until(lambda: server.metric("howdah_batch_texts_sum") == before[names[2]] + 2)
    assert server.metric(names[0], label="cat") == before[names[0]] + 2
    assert server.metric(names[3]) == before[names[3]] + 2
    assert server.metric(names[1]) == before[names[1]] + 8  # with [CLS] and [SEP]
    assert server.metric("howdah_errors_total", reason="the text is empty") == errors + 1
    assert server.metric("howdah_model_info", model="zoo", version="2", run_id="run-2") == 1
    assert server.metric("howdah_ready") == 1
    assert server.metric("process_resident_memory_bytes") > 0
    # No text of a user's is in what the server says of itself.
    server.ask(body=texts_of("xyzzyplugh", 3))
    assert "xyzzyplugh" not in server.output() + str(server.whole("/metrics")[2])


# -------------------------------------------------------------------------- queue, deadline, end
def test_a_full_queue_a_deadline_a_client_that_is_gone_and_the_end(start, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    server = start(gate=gate, limits={"grace_seconds": 60, "max_queue": 32})
    assert server.ask(body=texts_of("a"))[0] == 200
    gate.unlink()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        # One is computed and waits at the gate, the others wait in the queue.
        held = [pool.submit(server.ask, body=texts_of(*["the cat"] * 8)) for _ in range(3)]
        wait_until(lambda: server.metric("howdah_queue_texts") == 24)
        status, headers, answer = server.whole(body=texts_of(*["a"] * 9))
        assert (status, answer["error_type"]) == (429, "QueueFull")
        assert int(headers["Retry-After"]) >= 1
        assert answer["got"] == "24 waiting, 9 more"

        status, answer = server.ask(body=texts_of("late"), X_Timeout_Ms=50)
        assert (status, answer["expected"]) == (504, "within 50 ms (X-Timeout-Ms)")

        computed = server.metric("howdah_batch_texts_sum")
        lost = server.connect()
        lost.request("POST", "/v1/classify", json.dumps(texts_of(*["gone"] * 5)))
        wait_until(lambda: server.metric("howdah_queue_texts") >= 29)
        lost.close()
        wait_until(lambda: server.metric("howdah_errors_total", reason="client gone") == 1)

        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.ask("/v2/health/ready")[0] == 503)
        status, answer = server.ask(body=texts_of("new"))
        assert (status, answer["error_type"]) == (503, "Draining")
        assert server.ask("/v2/health/live")[0] == 200
        assert server.metric("howdah_batch_texts_sum") == computed
        assert not any(one.done() for one in held)
        gate.touch()
        for one in held:
            status, answer = one.result(LIMIT)
            assert (status, len(answer["predictions"])) == (200, 8)
    assert server.end() == 143
    assert "ending after 3 running requests" in server.output()


def test_a_second_signal_ends_it_at_once_and_the_grace_ends(start, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    server = start(gate=gate, limits={"grace_seconds": 60})
    gate.unlink()
    answers = []

    def ask() -> None:
        try:
            answers.append(server.ask(body=texts_of("a")))
        except (OSError, ConnectionError):
            answers.append(None)

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: server.metric("howdah_queue_texts") == 1)
    server.process.send_signal(signal.SIGINT)
    wait_until(lambda: server.ask("/v2/health/ready")[0] == 503)
    assert server.end(signal.SIGINT) == 130
    asking.join(LIMIT)
    assert answers == [None]


@pytest.mark.full
def test_requests_beyond_the_grace_are_refused_and_not_left_open(start, tmp_path):
    gate = tmp_path / "gate"
    gate.touch()
    server = start(gate=gate, limits={"grace_seconds": 0.5})
    gate.unlink()
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        held = pool.submit(server.ask, body=texts_of("a"))
        wait_until(lambda: server.metric("howdah_queue_texts") == 1)
        assert server.end() == 143
        status, answer = held.result(LIMIT)
        assert (status, answer["error_type"]) == (503, "Draining")


@pytest.mark.full
def test_a_killed_server_leaves_no_process_and_its_port(start):
    server = start()
    assert server.ask(body=texts_of("a"))[0] == 200
    assert server.end(signal.SIGKILL) == -signal.SIGKILL
    with socket.create_server(("127.0.0.1", server.port)):
        pass


@pytest.mark.full
def test_memory_stays_flat_under_bad_input_and_load(start):
    server = start()
    good = texts_of(*["the cat and a dog"] * 32)
    bad = [b" " * (2 * MIB + 1), DEEP, texts_of(*["a"] * 10_000), texts_of("a" * (3 * MIB))]

    def round_of() -> None:
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            jobs = [pool.submit(server.ask, body=body) for body in [good] * 40 + bad * 10]
            for job in jobs:
                job.result(LIMIT)
        for _ in range(20):
            talk(server, HEAD + b"Content-Length: 1000000\r\n\r\n" + b" " * 10_000, wait=False)

    for _ in range(3):
        round_of()
    before = server.memory()
    for _ in range(10):
        round_of()
    assert server.memory() < before + 24 * MIB


def test_connections_are_bounded_and_idle_ones_end(server):
    """Slow heads hold a descriptor each, not a thread: many of them slow no other request."""
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    try:
        began = time.monotonic()
        assert server.ask(body=texts_of("a"))[0] == 200
        assert time.monotonic() - began < LIMIT
        wait_until(lambda: server.metric("howdah_connections") <= 2)
    finally:
        for one in slow:
            one.close()


# ------------------------------------------------------------------------------------ who may ask
def test_a_token_is_asked_for_but_not_by_probes(start, token):
    server = start("--set", f"serve.token_file={token}")
    body = texts_of("a")
    for headers in ({}, {"Authorization": "Bearer nonsense"}, {"Authorization": "Basic x"}):
        status, reply_headers, answer = server.whole(body=body, **headers)
        assert (status, reply_headers["WWW-Authenticate"]) == (401, "Bearer")
        assert "0123456789" not in json.dumps(answer)
    for line in token.read_text().split():
        assert server.ask(body=body, Authorization=f"Bearer {line}")[0] == 200
    assert server.ask("/metrics")[0] == server.ask("/docs")[0] == 401
    # A browser cannot send the token when it opens the address: it gets a field for it, no more.
    status, _, page = server.whole("/")
    assert status == 200 and 'id="token"' in page and "<textarea" not in page
    assert not re.search(r"\b(zoo|run-2|cat|dog)\b", page)
    assert server.ask("/", Authorization="Bearer nonsense")[0] == 401
    line = token.read_text().split()[0]
    assert "<textarea" in server.whole("/", Authorization=f"Bearer {line}")[2]
    assert server.ask("/v2/health/ready")[0] == server.ask("/v2/health/live")[0] == 200


@pytest.mark.airflow  # Chromium is there where Airflow's tests run
def test_a_person_types_a_text_and_sees_its_label(server, start, token, browser):  # noqa: F811
    def classified(text: str) -> None:
        browser.fill("#text-1", text)
        browser.click("#ask button")
        assert browser.find("#predicted").text == "cat"
        assert "dog" in browser.find("#answer table").text
        width = "return document.querySelector('#answer td.bar i').offsetWidth"
        assert browser.driver.execute_script(width) > 20
        assert browser.driver.get_log("browser") == []

    browser.open(f"http://127.0.0.1:{server.port}/")
    classified("the cat")
    guarded = start("--set", f"serve.token_file={token}")
    browser.open(f"http://127.0.0.1:{guarded.port}/")
    browser.fill("#token", "nonsense")
    browser.click("#login button")
    browser.see("no token of this server")
    browser.driver.get_log("browser")  # it names the refusal
    browser.fill("#token", token.read_text().split()[0])
    browser.click("#login button")
    classified("the cat")


def refused(capsys, zoo, *words):
    """`howdah serve` in this process, refused: (exit code, its one JSON object)."""
    command = ["serve", "--model", "zoo", "--set", f"publish.directory={zoo}/models", "--json"]
    code = run(lambda: app([*command, *words], standalone_mode=False), as_json=True)
    return code, json.loads(capsys.readouterr().out)


def test_a_server_that_cannot_be_is_refused_before_a_model_is_opened(zoo, capsys, tmp_path, token):
    loose, empty = tmp_path / "loose", tmp_path / "empty"
    loose.write_text("x" * 40)
    os.chmod(loose, 0o644)
    empty.touch(0o600)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for words, code, what in (
            (["--port", str(port)], 2, "cannot listen"),
            (["--host", "203.0.113.7", "--set", "serve.open=true"], 2, "cannot listen"),
            (["--host", "0.0.0.0"], 2, "other machines could reach"),
            (["--set", f"serve.token_file={tmp_path / 'none'}"], 2, "cannot be read"),
            (["--set", f"serve.token_file={loose}"], 2, "other users may read"),
            (["--set", f"serve.token_file={empty}"], 2, "no usable token"),
            (["--set", "serve.max_texts=1000"], 2, "one key of the configuration"),
            (["--set", "serve.max_texts=-1"], 2, "one key of the configuration"),
            (["--replicas", "2"], 2, "without --on ray"),
            (["--on", "ray", "--set", "serve.memory=2 GiB"], 2, "serve.memory"),
            (["--on", "ray", "--set", f"serve.token_file={loose}"], 2, "other users may read"),
            (["--on", "ray", "--set", "serve.host=0.0.0.0"], 2, "other machines could reach"),
            (["--on", "ray", "--host", "0.0.0.0"], 2, "other machines could reach"),
            (["--model", "none", "--port", "0"], 4, "no such model"),
        ):
            exit_code, answer = refused(capsys, zoo, *words)
            assert exit_code == code, answer
            assert what in json.dumps(answer) or answer.get("problems"), (words, answer)
