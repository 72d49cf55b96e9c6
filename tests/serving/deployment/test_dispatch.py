"""The server's application with Ray's replicas behind it, without Ray's processes."""

import asyncio
import json
import time

import numpy as np
import pytest

from howdah.config.options.serve import ServeSection
from howdah.models.version import Version
from howdah.serving.compute.batcher import Work
from howdah.serving.compute.generation import Generation, RemoteModel
from howdah.serving.compute.metrics import Metrics
from howdah.serving.deployment import dispatch, replicas
from howdah.serving.deployment.split import choose
from howdah.serving.http.app import build
from howdah.serving.http.front import Front
from howdah.serving.http.state import HANGING_SECONDS, State
from howdah.serving.prediction.rows import Prediction, Row

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")

SCORES = [0.25, 0.75]


def queue_is_full() -> Exception:
    from ray.serve.exceptions import BackPressureError

    return BackPressureError(3, 2)


def replica_was_killed() -> Exception:
    from ray.exceptions import ActorDiedError

    return ActorDiedError()


def model_failed() -> Exception:
    from ray.exceptions import RayTaskError

    cause = ValueError("of a secret")
    error = RayTaskError("classify", "Traceback: of a secret", cause, ip="::1")
    return error.as_instanceof_cause()


class Replica:
    """A handle of a Classifier: it answers "dog", raises an error, or waits without an end."""

    def __init__(
        self, error: Exception | None = None, hangs: bool = False, is_closed: bool = False
    ) -> None:
        self.error, self.hangs, self.is_closed = error, hangs, is_closed
        self.calls, self.cancelled = [], 0

    @property
    def classify(self):
        return self

    def remote(self, rows):
        if self.is_closed:
            raise self.error
        self.calls.append(rows)
        return Call(self, rows)


class Call:
    """What the call of a handle returns."""

    def __init__(self, replica: Replica, rows) -> None:
        self.replica, self.rows = replica, rows

    def __await__(self):
        if self.replica.hangs:
            yield from asyncio.Event().wait().__await__()
        yield from asyncio.sleep(0).__await__()
        if self.replica.error is not None:
            raise self.replica.error
        return [Prediction(row.id, "dog", np.array(SCORES, np.float32)) for row in self.rows]

    def cancel(self) -> None:
        self.replica.cancelled += 1


def generation(number: int) -> Generation:
    model = RemoteModel(
        framework="onnx", labels=["cat", "dog"], run_id=f"run-{number}", max_length=16,
        task="single_label", pairs=False,
    )  # fmt: skip
    version = Version(address=f"zoo@{number}", path=f"/models/zoo/v={number}", number=number)
    return Generation(version=version, model=model)


class Server:
    """The application of a number of models, asked without HTTP."""

    def __init__(self, *handles: Replica, share: float = 0.0) -> None:
        self.lines = []
        generations = [generation(number) for number, _ in enumerate(handles, 1)]
        metrics = Metrics()
        self.dispatcher = dispatch.Dispatcher(
            generations, share, handles, metrics, self.lines.append
        )
        self.state = State(
            compute=self.dispatcher, metrics=metrics, settings=ServeSection(),
            hosts=["localhost"], say=self.lines.append, share=share,
        )  # fmt: skip
        self.app = Front(build(self.state), self.state)

    async def ask(self, path: str, body: object = None, **headers: str):
        """(status, headers, JSON) of a request whose client stays connected."""
        data = b"" if body is None else json.dumps(body).encode()
        fields = {"host": "localhost", **headers}
        scope = {
            "type": "http", "http_version": "1.1", "method": "GET" if body is None else "POST",
            "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "",
            "scheme": "http", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
            "headers": [
                (name.replace("_", "-").encode(), value.encode()) for name, value in fields.items()
            ],
        }  # fmt: skip
        arrived = [{"type": "http.request", "body": data, "more_body": False}]
        sent = []

        async def receive():
            if arrived:
                return arrived.pop()
            await asyncio.Event().wait()

        async def send(message):
            sent.append(message)

        await self.app(scope, receive, send)
        names = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        return sent[0]["status"], names, json.loads(b"".join(one["body"] for one in sent[1:]))

    def metric(self, name: str, **labels: str) -> float:
        return self.state.metrics.registry.get_sample_value(name, labels) or 0.0


def ask(server: Server, path: str, body: object = None, **headers: str):
    return asyncio.run(server.ask(path, body, **headers))


def test_each_format_is_answered_by_the_replicas():
    replica = Replica()
    server = Server(replica)
    status, headers, answer = ask(server, "/v1/classify", {"texts": ["the cat", ["a", "b"]]})
    assert status == 200 and headers["x-howdah-run-id"] == "run-1"
    assert (answer["model"], answer["version"], answer["run_id"]) == ("zoo", 1, "run-1")
    prediction = {"label": "dog", "score": 0.75, "scores": {"cat": 0.25, "dog": 0.75}}
    assert answer["predictions"] == [prediction, prediction]
    assert replica.calls == [[Row("0", "the cat"), Row("1", "a\x1eb", pair=True)]]
    _, _, best = ask(server, "/predict", {"inputs": "the cat"})
    assert best == [{"label": "dog", "score": 0.75}, {"label": "cat", "score": 0.25}]
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["the cat"]}
    _, _, answer = ask(server, "/v2/models/zoo/infer", {"inputs": [tensor]})
    assert {one["name"]: one["data"] for one in answer["outputs"]}["scores"] == SCORES
    _, _, about = ask(server, "/v2/models/zoo")
    assert about["versions"] == ["1"] and about["parameters"]["max_length"] == 16
    assert ask(server, "/health")[2] == {
        "status": "ok", "models": [{"model": "zoo", "version": 1, "run_id": "run-1"}]
    }  # fmt: skip
    assert ask(server, "/health", host="evil.example")[0] == 403
    assert server.metric("howdah_labels_total", label="dog") == 4
    info = {"model": "zoo", "version": "1", "run_id": "run-1", "framework": "onnx"}
    assert server.metric("howdah_model_info", **info) == 1
    assert server.metric("howdah_queue_texts") == 0


def test_a_key_chooses_one_of_two_models_and_a_path_may_name_one():
    server = Server(Replica(), Replica(), share=0.5)
    for number in range(20):
        body = {"text": "the cat", "key": f"user-{number}"}
        _, headers, answer = ask(server, "/v1/classify", body)
        expected = 1 + choose(f"user-{number}", 0.5, "zoo")
        assert (answer["version"], headers["x-howdah-version"]) == (expected, str(expected))
    without_key = [ask(server, "/predict", {"inputs": "a"})[1] for _ in range(60)]
    assert {headers["x-howdah-version"] for headers in without_key} == {"1", "2"}
    tensor = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["the cat"]}
    for version in ("1", "2") * 10:
        path = f"/v2/models/zoo/versions/{version}/infer"
        _, _, answer = ask(server, path, {"inputs": [tensor]})
        assert answer["model_version"] == version
        assert answer["parameters"]["run_id"] == f"run-{version}"
    assert ask(server, "/v2/models/zoo")[2]["versions"] == ["1", "2"]
    status, _, refusal = ask(server, "/v2/models/zoo/versions/3")
    assert (status, refusal["expected"]) == (404, "zoo, version 1; zoo, version 2")
    health = ask(server, "/health")[2]
    assert [one["run_id"] for one in health["models"]] == ["run-1", "run-2"]
    assert health["share"] == 0.5


@pytest.mark.parametrize(
    ("error", "status", "word"),
    [
        (queue_is_full, 429, "too many requests wait"),
        (replica_was_killed, 503, "has ended"),
    ],
)
def test_what_ray_refuses_may_be_asked_again(error, status, word):
    server = Server(Replica(error()))
    code, headers, refusal = ask(server, "/v1/classify", {"text": "a secret"})
    assert (code, headers["retry-after"], word in refusal["what"]) == (status, "1", True)
    assert "ask again" in refusal["remedy"] and not server.lines
    assert server.dispatcher.stalled_seconds == 0 and server.metric("howdah_queue_texts") == 0


def test_a_model_that_fails_is_named_without_the_text():
    server = Server(Replica(model_failed()))
    for _ in range(3):
        status, _, refusal = ask(server, "/v1/classify", {"text": "a secret"})
        assert (status, refusal["got"]) == (500, "ValueError")
        assert "secret" not in json.dumps(refusal)
    assert server.lines == ["the model failed on a request: ValueError"]  # once a minute
    assert server.metric("howdah_errors_total", reason="failed") == 3


def test_the_call_of_a_request_that_is_late_is_cancelled():
    replica = Replica(hangs=True)
    server = Server(replica)
    status, _, refusal = ask(server, "/v1/classify", {"text": "a"}, x_timeout_ms="20")
    assert (status, refusal["error_type"]) == (504, "DeadlinePassed")
    assert replica.cancelled == 1
    assert server.dispatcher.stalled_seconds == 0


def test_a_client_that_is_gone_has_its_call_cancelled_and_is_counted_as_gone():
    """Ray Serve cancels the request of such a client."""
    replica = Replica(hangs=True)
    server = Server(replica)

    async def leave() -> None:
        request = asyncio.create_task(server.ask("/v1/classify", {"text": "a"}))
        while not server.dispatcher.stalled_seconds:
            await asyncio.sleep(0)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        while server.dispatcher.stalled_seconds:
            await asyncio.sleep(0)

    asyncio.run(leave())
    assert replica.cancelled == 1
    assert server.metric("howdah_requests_total", face="classify", code="499") == 1


@pytest.mark.parametrize("is_dropped", [True, False])
def test_no_text_is_held_of_a_call_that_never_began(is_dropped):
    """It is dropped before the event loop comes to it, or the handle raises at once."""

    async def held() -> tuple[float, bool]:
        replica = Replica(error=replica_was_killed(), is_closed=not is_dropped)
        dispatcher = Server(replica).dispatcher
        finished = asyncio.Event()
        work = Work([Row("0", "a text")], done=finished.set)
        dispatcher.submit(work)
        if is_dropped:
            dispatcher.drop(work)
        await asyncio.wait_for(finished.wait(), 30)
        await asyncio.sleep(0.01)  # a text that is still held would be stalled for this time
        assert not replica.calls
        return dispatcher.stalled_seconds, work.failure is None

    assert asyncio.run(held()) == (0.0, is_dropped)


def test_a_replica_whose_computation_hangs_is_not_healthy():
    replica = replicas.Classifier.__new__(replicas.Classifier)
    for began in (None, time.monotonic()):
        replica._began = began
        replica.check_health()
    replica._began = time.monotonic() - HANGING_SECONDS - 1
    with pytest.raises(RuntimeError, match="no answer of the model"):
        replica.check_health()


def test_rows_and_predictions_come_back_as_they_were_sent():
    from ray import cloudpickle

    rows = [Row("0", "café"), Row("1", "a\x1eb", pair=True)]
    assert cloudpickle.loads(cloudpickle.dumps(rows)) == rows
    scores = np.array([0.1, 0.9], np.float32)
    sent = [Prediction("0", "dog", scores), Prediction("1", None, None, "the text is empty")]
    first, second = cloudpickle.loads(cloudpickle.dumps(sent))
    assert first.scores.dtype == np.float32 and (first.scores == scores).all()
    assert (first.id, first.label, first.error) == ("0", "dog", None)
    assert second == sent[1]


def test_a_request_may_leave_the_choice_of_a_model_to_the_server():
    async def submit() -> Work:
        dispatcher = Server(Replica()).dispatcher
        work, done = Work([Row("0", "a")]), asyncio.Event()
        work.done = done.set
        dispatcher.submit(work)
        await done.wait()
        return work

    work = asyncio.run(submit())
    assert work.failure is None and work.generation == generation(1)
