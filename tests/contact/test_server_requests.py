"""Raw requests to `howdah serve`: what it may answer to each, and that it answers the next one.

Each row is bytes, the statuses that may come back, and whether the connection must then be closed
by the server. Behind every row a good request is answered, and all the while another thread asks
for the server's health, as a kubelet does.
"""

import json
import signal
import socket
import threading
import time
from dataclasses import dataclass, field

import pytest

from tests.runs.servers import LIMIT, Server, publish_version

MIB = 2**20
HEALTH_SECONDS = 10.0
"""Ten times what a probe may take: detects one that waits for the requests before it. The machine
that runs this is busy with other tests (2.2 s were measured)."""


@dataclass
class Probe:
    """Asks for the server's health in a thread, and keeps the longest time."""

    server: Server
    longest: float = 0.0
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            for path in ("/v2/health/live", "/v2/health/ready"):
                began = time.monotonic()
                try:
                    status, _ = self.server.ask(path)
                except OSError as error:
                    status = repr(error)
                self.longest = max(self.longest, time.monotonic() - began)
                if status != 200:
                    self.failures.append(f"{path}: {status}")

    def end(self) -> None:
        self._stop.set()
        self._thread.join(LIMIT)
        assert not self.failures, self.failures[:5]
        assert self.longest < HEALTH_SECONDS


@pytest.fixture(scope="module")
def server(tmp_path_factory, tiny_model_dir):
    place = tmp_path_factory.mktemp("requests")
    publish_version(place, tiny_model_dir, 2)
    server = Server(place, place, limits={"read_seconds": 1})
    server.wait_until_ready()
    probe = Probe(server)
    yield server
    probe.end()
    server.end(signal.SIGKILL)
    assert "Traceback" not in server.output()


# --------------------------------------------------------------------------------- the requests
HOST = b"Host: localhost\r\n"


def get(path: bytes = b"/health", more: bytes = b"", host: bytes = HOST) -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\n" + host + more + b"\r\n"


def post(body: bytes, more: bytes = b"", path: bytes = b"/v1/classify") -> bytes:
    head = b"POST " + path + b" HTTP/1.1\r\n" + HOST + more
    return head + b"Content-Length: %d\r\n\r\n" % len(body) + body


def chunked(rest: bytes, more: bytes = b"") -> bytes:
    head = b"POST /v1/classify HTTP/1.1\r\n" + HOST + more
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + rest


def with_lengths(lines: bytes) -> bytes:
    return b"POST /v1/classify HTTP/1.1\r\n" + HOST + lines + b'\r\n{"text": "a"}'


def tei(body: bytes) -> bytes:
    return post(body, path=b"/predict")


def oip(**changes) -> bytes:
    """A request of the Open Inference Protocol, changed in its tensor or beside it."""
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}
    tensor |= {name: value for name, value in changes.items() if name in tensor}
    more = {name: value for name, value in changes.items() if name not in tensor}
    return post(json.dumps({"inputs": [tensor], **more}).encode(), path=b"/v2/models/zoo/infer")


GOOD = b'{"text": "the cat"}'
EVIL = b"Host: evil.example\r\n"
CLOSED = "closed"
"""Stands for a status: the server may close the connection without an answer."""

HEADS = [
    ("GET with body, no length", get() + b"xxxx", {200}),
    ("bare LF line ends", get().replace(b"\r\n", b"\n"), {200, 400}),
    ("HTTP/0.9 request", b"GET /health\r\n\r\n", {400}),
    ("half an HTTP/0.9 request", b"GET /health\r\n", {400, 408}),
    ("HTTP/1.0", b"GET /health HTTP/1.0\r\n" + HOST + b"\r\n", {200}),
    ("HTTP/1.0 without Host, as HAProxy checks", b"GET /health HTTP/1.0\r\n\r\n", {200}),
    ("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 403}),
    ("HTTP/9.9", get().replace(b"1.1", b"9.9"), {400, 505}, "closes"),
    ("TLS ClientHello bytes", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64), {400}),
    ("NUL in path", get(b"/hea\x00lth"), {400}),
    ("no Host (1.1)", get(host=b""), {400}),
    ("two Hosts", get(host=HOST + HOST), {400}),
    ("Host evil@localhost", get(host=b"Host: evil@localhost\r\n"), {403}, "closes"),
    ("Host localhost.evil", get(host=b"Host: localhost.evil\r\n"), {403}, "closes"),
    ("Host [::1]evil", get(host=b"Host: [::1]evil\r\n"), {403}, "closes"),
    ("Host localhost:99999999", get(host=b"Host: localhost:99999999\r\n"), {403}, "closes"),
    ("Host [::1]:8000", get(host=b"Host: [::1]:8000\r\n"), {200}),
    ("Host LOCALHOST:8000", get(host=b"Host: LOCALHOST:8000\r\n"), {200}),
    ("Host 0x7f.1", get(host=b"Host: 0x7f.1\r\n"), {403}, "closes"),
    ("whole URL, another host", get(b"http://evil.example/health"), {403}, "closes"),
    ("whole URL, this host", get(b"http://localhost:8000/health"), {200}),
    ("whole URL, this host, another Host", get(b"HTTP://localhost/health", host=EVIL), {200}),
    ("whole URL without a path", get(b"http://localhost"), {200}),
    ("whole URL of no host", get(b"http:///health"), {400, 403}, "closes"),
    ("CL and TE: chunked (smuggling)",
     chunked(b"0\r\n\r\n" + get(), b"Content-Length: 5\r\n"), {400}, "closes"),
    ("TE: xchunked", chunked(b"0\r\n\r\n").replace(b"chunked", b"xchunked"), {400, 501}),
    ("TE: chunked, identity",
     chunked(b"0\r\n\r\n").replace(b"chunked", b"chunked, identity"), {400, 501}),
    ("TE twice", chunked(b"0\r\n\r\n", b"Transfer-Encoding: chunked\r\n"), {400, 501}),
    ("TE with obs-fold", chunked(b"0\r\n\r\n").replace(b": chunked", b":\r\n chunked"), {400}),
    ("CL twice, different", with_lengths(b"Content-Length: 5\r\nContent-Length: 6\r\n"), {400}),
    ("CL +5", with_lengths(b"Content-Length: +5\r\n"), {400}),
    ("CL -1", with_lengths(b"Content-Length: -1\r\n"), {400}),
    ("CL 1e3", with_lengths(b"Content-Length: 1e3\r\n"), {400}),
    ("CL of 5000 digits", with_lengths(b"Content-Length: " + b"9" * 5000 + b"\r\n"), {400}),
    ("CL of 19 digits with Expect",
     with_lengths(b"Content-Length: 9999999999999999999\r\nExpect: 100-continue\r\n"), {413},
     "closes"),
    ("space before colon", get(more=b"X : y\r\n"), {400}),
    ("chunk size negative", chunked(b"-1\r\nabc\r\n0\r\n\r\n"), {400}),
    ("chunk size huge", chunked(b"ffffffffffffffff\r\nabc"), {400, 408}),
    ("chunk extension 1 MB", chunked(b"1;" + b"a" * MIB), {400}),
    ("chunk trailer 1 MB", chunked(b"0\r\nX: " + b"a" * MIB), {400}),
    ("10,000 headers", get(more=b"".join(b"X-%d: y\r\n" % n for n in range(10_000))), {400, 431},
     "closes"),
    ("101 headers", get(more=b"".join(b"X-%d: y\r\n" % n for n in range(101))), {431}, "closes"),
    ("heads of 98 kB", get(more=b"".join(b"X-%d: %s\r\n" % (n, b"y" * 980) for n in range(98))),
     {400, 431}, "closes"),
    ("header of 1 MB", get(more=b"X: " + b"a" * MIB + b"\r\n"), {400, 431}),
    ("path of 60,000", get(b"/" + b"a" * 60_000), {404}, "closes"),
    ("CR in header value", get(more=b"X: a\rb\r\n"), {400}),
    ("CONNECT", b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n", {400, 404, 405}),
    ("OPTIONS *", b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n", {404, 405}),
    ("TRACE", get().replace(b"GET", b"TRACE"), {405}),
    ("method of 10,000 letters", get().replace(b"GET", b"G" * 10_000), {400, 405}),
    ("Upgrade: h2c", get(more=b"Connection: Upgrade\r\nUpgrade: h2c\r\n"), {200}),
    ("Upgrade: websocket", get(more=b"Connection: Upgrade\r\nUpgrade: websocket\r\n"),
     {200, 400, 404}),
    ("half-open after head", post(GOOD)[: -len(GOOD)], {408, CLOSED}, "closes"),
    ("FIN in the middle of the body", post(GOOD)[:-5], {400, 408, CLOSED}, "fin"),
    ("path traversal", get(b"/v2/models/..%2f..%2fetc"), {404}, "closes"),
    ("//metrics", get(b"//metrics"), {404}),
    ("/metrics/ (trailing)", get(b"/metrics/"), {404}),
    ("/METRICS", get(b"/METRICS"), {404}),
    ("version 0002", get(b"/v2/models/zoo/versions/0002"), {404}),
    ("CRLF in path", get(b"/a%0d%0aX-Evil:%20y"), {404}),
    ("HTML in path", get(b"/%3Cscript%3E"), {404}),
]  # fmt: skip

BODIES = [
    ("NaN as text", post(b'{"text": NaN}'), {422}),
    ("NaN key", post(b'{"text": "a", "key": NaN}'), {422}),
    ("Infinity", post(b'{"text": Infinity}'), {422}),
    ("key true", post(b'{"text": "a", "key": true}'), {422}),
    ("key of 2000 characters", post(b'{"text": "a", "key": "%s"}' % (b"k" * 2000)), {422}),
    ("duplicate name text", post(b'{"text": "a", "text": "b"}'), {200, 422}),
    ("text null", post(b'{"text": null}'), {422}),
    ("text {}", post(b'{"text": {}}'), {422}),
    ("text []", post(b'{"text": []}'), {422}),
    ("pair to a single model", post(b'{"text": ["a", "b"]}'), {200}),
    ("three sides", post(b'{"text": ["a", "b", "c"]}'), {422}),
    ("nested 50,000 lists",
     post(b'{"text": ' + b"[" * 50_000 + b"]" * 50_000 + b"}"), {400, 413}),
    ("nested 9,000 lists", post(b'{"text": ' + b"[" * 9_000 + b"]" * 9_000 + b"}"), {400}),
    ("nested 900 lists", post(b'{"text": ' + b"[" * 900 + b"]" * 900 + b"}"), {422}),
    ("unknown name with surrogate", post(b'{"text": "a", "\\ud800": 1}'), {422}),
    ("unknown name of 1 MB", post(b'{"text": "a", "%s": 1}' % (b"n" * MIB)), {422}),
    ("surrogate escape in text", post(b'{"text": "\\ud800"}'), {422}),
    ("raw surrogate bytes", post(b'{"text": "\xed\xa0\x80"}'), {400, 422}),
    ("overlong UTF-8", post(b'{"text": "\xc0\xaf"}'), {400}),
    ("UTF-16 body", post('{"text": "a"}'.encode("utf-16")), {200, 400}),
    ("UTF-32 body", post('{"text": "a"}'.encode("utf-32")), {200, 400}),
    ("UTF-8 BOM", post(b"\xef\xbb\xbf" + GOOD), {200, 400}),
    ("JSON then garbage", post(GOOD + b"garbage"), {400}),
    ("int of 100,000 digits", post(b'{"text": ' + b"1" * 100_000 + b"}"), {400}),
    ("1,000 floats 1e400", post(b'{"texts": [' + b"1e400," * 999 + b"1]}"), {413, 422}),
    ("body 2 MiB of []", post(b'{"text": [' + b"[]," * 699_000 + b"1]}"), {413}),
    ("2 MiB of keys", post(b'{"text": "a", ' + b",".join(b'"%d":1' % n for n in range(190_000))
     + b"}"), {413, 422}),
    ("2 MiB of quotes and backslashes", post(b'{"text": ["' + b'\\"' * MIB), {400, 413}),
    ("2 MiB of colons in a text", post(b'{"text": "%s"}' % (b":" * (2 * MIB - 20))), {200}),
    ("2 MiB of escaped quotes and commas",
     post(b'{"text": "%s"}' % (b'\\",' * (2 * MIB // 3 - 10))), {200}),
    ("10 MB body", post(b" " * 10_000_000), {413}),
    ("40 MB body", post(b" " * 40_000_000), {413}, "closes"),
    ("gzip", post(GOOD, b"Content-Encoding: gzip\r\n"), {415}),
    ("Content-Encoding: br, upper", post(GOOD, b"CONTENT-ENCODING: BR\r\n"), {415}),
    ("Content-Type: multipart",
     post(GOOD, b"Content-Type: multipart/form-data; boundary=x\r\n"), {200, 415}),
    ("Origin of another site",
     post(GOOD, b"Content-Type: text/plain\r\nOrigin: http://evil.example\r\n"), {403}, "closes"),
    ("Origin null", post(GOOD, b"Origin: null\r\n"), {403}, "closes"),
    ("Origin of this server", post(GOOD, b"Origin: http://localhost\r\n"), {200}),
    ("X-Timeout-Ms: -1", post(GOOD, b"X-Timeout-Ms: -1\r\n"), {422}),
    ("X-Timeout-Ms: nan", post(GOOD, b"X-Timeout-Ms: nan\r\n"), {422}),
    ("X-Timeout-Ms: 1e-300", post(GOOD, b"X-Timeout-Ms: 1e-300\r\n"), {504}),
    ("X-Timeout-Ms: 1_0_0_0", post(GOOD, b"X-Timeout-Ms: 1_0_0_0\r\n"), {422}),
    ("X-Timeout-Ms: 0x10", post(GOOD, b"X-Timeout-Ms: 0x10\r\n"), {422}),
    ("TEI inputs []", tei(b'{"inputs": []}'), {422}),
    ("TEI inputs [[]]", tei(b'{"inputs": [[]]}'), {422}),
    ("TEI inputs [[[a]]]", tei(b'{"inputs": [[["a"]]]}'), {422}),
    ("TEI truncation {}", tei(b'{"inputs": "a", "truncation": {}}'), {200, 422}),
    ("TEI raw_scores 1", tei(b'{"inputs": "a", "raw_scores": 1}'), {422}),
    ("OIP shape [-1]", oip(shape=[-1]), {422}),
    ("OIP shape [1e9]", oip(shape=[10**9]), {413}),
    ("OIP shape [true]", oip(shape=[True]), {422}),
    ("OIP shape [1,1,1]", oip(shape=[1, 1, 1]), {422}),
    ("OIP shape huge int", oip(shape=[10**4000]), {413, 422}),
    ("OIP data nested", oip(data=[[["a"]]]), {422}),
    ("OIP data dict", oip(data={"a": 1}), {422}),
    ("OIP outputs 600,000 names",
     post(b'{"inputs": [], "outputs": [' + b"{}," * 600_000 + b"{}]}",
          path=b"/v2/models/zoo/infer"),
     {413, 422}),
    ("OIP outputs 5,000 names", oip(outputs=[{"name": "n" * 300}] * 5000), {422}),
    ("OIP id 2000", oip(id="i" * 2000), {422}),
    ("OIP id with CR LF", oip(id="a\r\nX-Evil: b"), {200}),
    ("OIP parameters list", oip(parameters=[]), {422}),
    ("OIP parameters top", oip(parameters={"top": 1}), {200, 422}),
]  # fmt: skip


@dataclass
class Answers:
    """What came back on one connection."""

    statuses: list[int]
    heads: list[bytes]
    bodies: list[bytes]
    is_closed: bool


def exchange(server: Server, request: bytes, *, count: int = 1, until_closed: bool = False,
             ends: bool = False) -> Answers:  # fmt: skip
    """Send bytes, and read until `count` answers are there or the server has ended the connection.

    Args:
        ends: the client ends its side behind the request.
    """
    answers = Answers([], [], [], False)
    with socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT) as connection:

        def send() -> None:
            try:
                connection.sendall(request)
                if ends:
                    connection.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # it has answered before the end

        sender = threading.Thread(target=send)
        sender.start()
        data = b""
        while until_closed or len(answers.statuses) < count:
            try:
                part = connection.recv(65536)
            except ConnectionResetError:
                part = b""
            if not part:
                answers.is_closed = True
                break
            data += part
            data = _taken(data, answers)
        sender.join(LIMIT)
    return answers


def _taken(data: bytes, answers: Answers) -> bytes:
    """Take whole answers from the beginning; the rest."""
    while b"\r\n\r\n" in data:
        head, _, rest = data.partition(b"\r\n\r\n")
        status = int(head.split(b" ")[1])
        if status < 200:  # 100 Continue
            data = rest
            continue
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-len")]
        length = int(lengths[0].split(b":")[1]) if lengths else 0
        if len(rest) < length:
            break
        answers.statuses.append(status)
        answers.heads.append(head)
        answers.bodies.append(rest[:length])
        data = rest[length:]
    return data


@pytest.mark.parametrize("row", HEADS + BODIES, ids=lambda row: row[0])
def test_each_request_is_answered_as_it_may_be_and_the_next_one_too(server, row):
    _, request, allowed, *more = row
    answers = exchange(server, request, until_closed="closes" in more, ends="fin" in more)
    if answers.statuses:
        assert answers.statuses[0] in allowed, answers
        # One answer, no smuggling.
        assert len(answers.statuses) == 1 or "closes" not in more, answers
    else:
        assert answers.is_closed and CLOSED in allowed, answers
    for status, head, body in zip(answers.statuses, answers.heads, answers.bodies, strict=True):
        assert b"Traceback" not in body and b"X-Evil" not in head
        if status >= 400:
            assert len(body) < 4096 and len(head) < 1024, (status, len(head), len(body))
            if b"application/json" in head:
                assert json.loads(body)["what"]
    status, answer = server.ask(body={"text": "the cat"})
    assert (status, answer["prediction"]["label"]) == (200, "cat")


def test_requests_in_a_row_on_one_connection(server):
    answers = exchange(server, get() * 200, count=200)
    assert answers.statuses == [200] * 200
    answers = exchange(server, post(GOOD) + get(), count=2)
    assert answers.statuses == [200, 200]
    assert json.loads(answers.bodies[0])["prediction"]["label"] == "cat"


def test_a_refused_request_is_answered_though_its_body_is_still_being_sent(server):
    """Not by a reset, which takes the answer from the client."""
    for path in (b"/v1/nothing", b"/v2/models/cow/infer"):
        answers = exchange(server, post(b" " * 1_900_000, path=path), until_closed=True)
        assert answers.statuses == [404]
