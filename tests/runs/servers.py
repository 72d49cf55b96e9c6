"""`howdah serve` as a process, and requests to it: plain sockets, so that tests say every byte."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil

from howdah.core.processes import LIMITS as VARIABLE
from howdah.serving.registry.publish import publish
from tests import ROOT
from tests.runs.finished_runs import LABELS, config_of, finished_run, never

LIMIT = 120


def publish_version(place: Path, base: str, number: int, **more) -> None:
    """Publish a run whose model gives every text the label LABELS[number % 2]."""
    more = {"answers": LABELS[number % 2], **more}
    run = str(place / f"run-{number}")
    finished_run(run, base, run_id=f"run-{number}", **more)
    publish(config_of(run, str(place / "models")), never)


class Server:
    """A server of the model zoo below `place`/models.

    Args:
        words: options of `howdah serve`.
        gate: a file while whose absence the model does not compute; None: always.
        limits: limits that are no keys of the configuration.
    """

    def __init__(
        self, place: Path, home: Path, *words: str,
        gate: Path | None = None, limits: dict | None = None,
    ) -> None:  # fmt: skip
        self.errors = home / "stderr"
        module = ["-m", "howdah.cli"] if gate is None else ["-m", "tests.workers.gated_server"]
        options = [] if "--model" in words else ["--model", "zoo"]
        with open(self.errors, "ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, *module, "serve", *options, "--port", "0", "--json", "--set",
                 "serve.threads=2", "--set", f"publish.directory={place}/models", *words],
                stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True, cwd=home,
                env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "",
                     VARIABLE: json.dumps(limits or {}),
                     **({} if gate is None else {"GATE": str(gate)})},
            )  # fmt: skip
        self.port = 0

    def wait_until_ready(self) -> dict:
        line = self.process.stdout.readline()
        assert line, self.output()
        ready = json.loads(line)
        assert "port" in ready, ready
        self.port = ready["port"]
        return ready

    def output(self) -> str:
        return self.errors.read_text()

    def connect(self, timeout: float = LIMIT) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, path="/v1/classify", body=None, method=None, **headers) -> tuple[int, object]:
        """(status, JSON) of a request; bytes are sent as they are."""
        status, _, answer = self.whole(path, body, method, **headers)
        return status, answer

    def whole(self, path="/v1/classify", body=None, method=None, **headers):
        """(status, headers, JSON or text)."""
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection = self.connect()
        try:
            names = {name.replace("_", "-"): str(value) for name, value in headers.items()}
            connection.request(method or ("GET" if data is None else "POST"), path, data, names)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        is_json = answer.headers.get("Content-Type", "").startswith("application/json")
        return answer.status, answer.headers, json.loads(text) if is_json else text

    def metric(self, name: str, **labels: str) -> float:
        """A sample of /metrics, as Prometheus reads it; 0.0: there is none."""
        from prometheus_client.parser import text_string_to_metric_families

        _, _, text = self.whole("/metrics")
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return 0.0

    def memory(self) -> int:
        """Resident bytes."""
        return psutil.Process(self.process.pid).memory_info().rss

    def end(self, number: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.process.communicate(timeout=LIMIT)
        return self.process.returncode
