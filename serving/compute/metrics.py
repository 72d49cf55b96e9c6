"""The server's counters for Prometheus. None of them contains a user's text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from howdah.serving.compute.batching import padded
from howdah.serving.compute.generation import Generation
from howdah.serving.prediction.rows import Prediction

_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_CONFIDENCE = (*(round(0.05 * step, 2) for step in range(1, 20)), 0.99, 1.0)
_MOST_LABELS = 500
"""Labels that are counted by name; later ones are counted together, since each is a time series."""
_OTHERS, _REJECTED = "(others)", "(rejected)"


class Metrics:
    """The server's counters, in a registry of its own. Prometheus' classes are thread-safe."""

    def __init__(self) -> None:
        from prometheus_client import (
            CollectorRegistry,
            Counter,
            Gauge,
            Histogram,
            PlatformCollector,
            ProcessCollector,
        )

        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"howdah_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
            return Histogram(f"howdah_{name}", text, labels, buckets=buckets, registry=registry)

        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"howdah_{name}", text, labels, registry=registry)

        self.requests = counter("requests", "Requests answered.", "face", "code")
        self.latency = histogram(
            "request_seconds", "Seconds from a request's head to its answer.", _SECONDS, "face"
        )
        self.queued = histogram("queue_seconds", "Seconds a request waits for a batch.", _SECONDS)
        self.computed = histogram("batch_seconds", "Seconds to compute a batch.", _SECONDS)
        self.batch_rows = histogram("batch_texts", "Texts of a batch.", _ROWS)
        self.batch_tokens = histogram("batch_tokens", "Tokens of a batch, with padding.", _TOKENS)
        self.tokens = counter("tokens", "Tokens computed, without padding.")
        self.padding = counter("padding_tokens", "Padding computed.")
        self.waiting = gauge("queue_texts", "Texts waiting or being computed.")
        self.connections = gauge("connections", "Open connections.")
        self.ready = gauge("ready", "1 while requests are answered.")
        names = ("model", "version", "run_id", "framework")
        self.info = gauge("model_info", "1 for the version that answers.", *names)
        self.reloads = counter("reloads", "Versions that were opened, by result.", "result")
        self.pointer_errors = counter("pointer_errors", "Failed reads of current.json.")
        self.labels = counter("labels", "Texts by predicted label.", "label")
        self.confidence = histogram("confidence", "Score of the predicted label.", _CONFIDENCE)
        self.errors = counter("errors", "Texts and requests without a prediction.", "reason")
        self.drift = gauge("drift", "Drift of live texts from the model's profile.", "column")
        self.drift_rows = gauge("drift_texts", "Texts that drift is computed from.")
        self.drift_alarm = gauge("drift_alarm", "1 if the column has drifted.", "column")
        self._label_names: set[str] = set()

    def serving(self, *generations: Generation) -> None:
        """Set the versions that answer from now on."""
        self.info.clear()
        for one in generations:
            version = "" if one.version.number is None else str(one.version.number)
            self.info.labels(one.name, version, one.model.run_id, one.model.framework).set(1)

    def batch(self, lengths: Sequence[int], seconds: float) -> None:
        """Count a computed batch."""
        self.computed.observe(seconds)
        self.batch_rows.observe(len(lengths))
        self.batch_tokens.observe(padded(lengths))
        self.tokens.inc(sum(lengths))
        self.padding.inc(padded(lengths) - sum(lengths))

    def prediction(self, one: Prediction, generation: Generation) -> None:
        """Count an answered text."""
        if one.scores is None:
            self.errors.labels(one.error or "unknown").inc()
            return
        if generation.outputs.task == "single_label":
            self.labels.labels(_REJECTED if one.rejected else self._counted(one.label)).inc()
            self.confidence.observe(float(np.max(one.scores)))
        elif isinstance(one.label, list):
            for label in one.label:
                self.labels.labels(self._counted(label)).inc()

    def _counted(self, label: str) -> str:
        if label not in self._label_names and len(self._label_names) >= _MOST_LABELS:
            return _OTHERS
        self._label_names.add(label)
        return label

    def text(self, accept: str) -> tuple[bytes, str]:
        """Return (page, media type) for a request's Accept header."""
        from prometheus_client.exposition import choose_encoder

        encode, media = choose_encoder(accept)
        return encode(self.registry), media
