"""What the server counts: labels, formats of requests, and texts per second for Retry-After."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest

from howdah.serving.compute import batcher as batchers
from howdah.serving.compute.metrics import Metrics
from howdah.serving.compute.refusals import QueueFull
from howdah.serving.http.front import Front
from howdah.serving.http.state import State
from howdah.serving.prediction.rows import Outputs, Prediction, Row

GENERATION = SimpleNamespace(
    name="zoo", version=SimpleNamespace(number=1),
    model=SimpleNamespace(run_id="run-1", framework="onnx"),
    outputs=Outputs(task="single_label", labels=["None", "dog"]),
)  # fmt: skip


def test_a_rejected_text_is_not_counted_as_the_label_none():
    metrics, scores = Metrics(), np.array([0.6, 0.4], np.float32)
    for label in ("None", None, None):
        metrics.prediction(Prediction("0", label, scores), GENERATION)

    def count(label: str) -> float | None:
        return metrics.registry.get_sample_value("howdah_labels_total", {"label": label})

    assert (count("None"), count("(rejected)")) == (1, 2)


@pytest.mark.parametrize(
    ("path", "face"),
    [("/predict", "predict"), ("/predictions", "other"), ("/healthz", "other"),
     ("/health", "health"), ("/v2/health/live", "health"), ("/v2/models/zoo/infer", "oip"),
     ("/v20", "other"), ("/v1/classify/", "classify")],
)  # fmt: skip
def test_a_path_is_counted_as_the_format_that_it_is_of(path, face):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 404})

    async def send(message):
        pass

    metrics = Metrics()
    state = State(compute=None, metrics=metrics, settings=None, hosts=None)
    scope = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": [],
        "http_version": "1.1",
    }  # fmt: skip
    asyncio.run(Front(app, state)(scope, None, send))
    counted = {"face": face, "code": "404"}
    assert metrics.registry.get_sample_value("howdah_requests_total", counted) == 1


def test_a_quiet_hour_is_not_in_the_rate_of_retry_after(monkeypatch):
    now = 0.0
    monkeypatch.setattr(batchers, "time", SimpleNamespace(monotonic=lambda: now))
    batcher = batchers.Batcher(
        GENERATION, budget=1024, most=512, workers=1, wait=0.0, metrics=Metrics(),
        call_soon=lambda function: function(), answered=lambda outcome: None,
        say=lambda line: None,
    )  # fmt: skip

    def submitted(texts: int) -> batchers.Work:
        work = batchers.Work([Row("0", "a")] * texts)
        batcher.submit(work)
        return work

    for seconds in (2.0, 2.0):  # 50 texts per second, with an hour between
        work = submitted(100)
        now += seconds
        batcher._count(100)
        batcher._finish([work])
        now += 3600
    submitted(500)
    with pytest.raises(QueueFull) as caught:
        submitted(100)
    assert caught.value.seconds == 10
