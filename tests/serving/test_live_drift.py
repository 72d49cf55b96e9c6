"""Drift of live texts: what is counted, what is forgotten, and what the gauges say."""

from types import SimpleNamespace

import numpy as np
import pytest

from howdah.serving.compute.metrics import Metrics
from howdah.serving.prediction.rows import Prediction
from howdah.serving.versions import live_drift

profiles = pytest.importorskip("howdah.models.profile.profile")
references = pytest.importorskip("howdah.models.profile.reference")
judge = pytest.importorskip("howdah.serving.drift.judge")
samples = pytest.importorskip("tests.serving.drift.samples")


def generation(path: str):
    return SimpleNamespace(version=SimpleNamespace(path=path))


@pytest.fixture
def reference(tmp_path):
    """A model's profile with 2,000 rows, in its directory."""
    profile = samples.reference()
    profile.add(*samples.rows(1, 2000))
    (tmp_path / profiles.PROFILE).write_bytes(profile.to_bytes())
    return profile


def batch(of, seed: int, count: int, label: int | None = None) -> list:
    scores_NC, ids_N = samples.rows(seed, count)
    if label is not None:
        scores_NC = np.roll(np.sort(scores_NC, axis=1), label + 1, axis=1)
    return [
        (of, None, ids, Prediction("0", "a", scores))
        for scores, ids in zip(scores_NC, ids_N, strict=True)
    ]


def gauge(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"howdah_{name}", labels)


def test_texts_like_the_models_own_are_no_drift_and_one_label_alone_is(tmp_path, reference):
    metrics, here = Metrics(), generation(str(tmp_path))
    live = live_drift.LiveDrift(here, metrics, lambda line: None)
    live.add(batch(here, 2, 30))
    live.publish()
    assert gauge(metrics, "drift_texts") == 30
    assert gauge(metrics, "drift", column="label") is None  # too few
    live.add(batch(here, 3, 1500))
    live.failed(empty=2, errors=0)
    live.publish()
    assert gauge(metrics, "drift_texts") == 1532
    assert gauge(metrics, "drift_alarm", column="label") == 0
    # The same as the judgement on these rows at once.
    whole = profiles.Profile.like(reference)
    for seed, count in ((2, 30), (3, 1500)):
        whole.add(*samples.rows(seed, count))
    whole.add_failed(empty=2)
    for column in judge.judge(reference, whole).columns:
        if column.value is not None:
            assert gauge(metrics, "drift", column=column.name) == column.value
    live.add(batch(here, 4, 4000, label=0))
    live.publish()
    assert gauge(metrics, "drift_alarm", column="label") == 1


def test_what_was_long_ago_is_forgotten_and_a_new_version_begins_anew(
    tmp_path, reference, monkeypatch
):
    monkeypatch.setattr(live_drift, "_WINDOW", 500)
    metrics, here = Metrics(), generation(str(tmp_path))
    live = live_drift.LiveDrift(here, metrics, lambda line: None)
    live.add(batch(here, 4, 2000, label=0))
    for seed in range(10):
        live.add(batch(here, 10 + seed, 120))
    live.publish()
    assert 500 <= gauge(metrics, "drift_texts") <= 1000 + 120
    assert gauge(metrics, "drift_alarm", column="label") == 0
    after = generation(str(tmp_path))
    live.begin(after)
    live.add(batch(here, 5, 100))  # of requests that the old version has answered since
    live.publish()
    assert gauge(metrics, "drift_texts") == 0


def test_a_model_without_a_profile_has_no_gauges_and_a_damaged_one_says_so(tmp_path):
    metrics, messages = Metrics(), []
    live = live_drift.LiveDrift(generation(str(tmp_path)), metrics, messages.append)
    live.add([])
    live.publish()
    assert gauge(metrics, "drift", column="label") is None and messages == []
    (tmp_path / profiles.PROFILE).write_text("{}")
    live.begin(generation(str(tmp_path)))
    assert "no drift is shown" in messages[0]


def test_a_profile_of_another_decision_is_not_shown_and_named(tmp_path):
    scores = np.random.default_rng(0).dirichlet(np.ones(2), 300)
    profile = references.make(
        scores, scores[:, 0] > 0.5, task="single_label", labels=["a", "b"], split="validation"
    )
    (tmp_path / profiles.PROFILE).write_bytes(profile.to_bytes())
    (tmp_path / "howdah.json").write_text('{"decision": {"temperature": 1.5}}')
    messages = []
    live_drift.LiveDrift(generation(str(tmp_path)), Metrics(), messages.append)
    assert "no drift is shown" in messages[0] and "another decision" in messages[0]
