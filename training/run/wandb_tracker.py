"""Weights & Biases as a tracker: rank 0's end of the process that talks to W&B (wandb_process.py).

W&B's library replaces sys.exit and the exit hooks of its process, may ask for a key on the terminal
and waits for uploads at the end. In a process of its own none of that reaches the training: that
process can be slow, fail or be killed, and training goes on.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from howdah import redact, storage
from howdah.config.model import Config
from howdah.core import activity
from howdah.core.child import Child
from howdah.process import isolation
from howdah.training.run.tracking import CLOSE_SECONDS, Point, Provenance, ServerTracker

_CODES = {"finished": 0, "interrupted": 255}
"""Exit codes by which W&B shows a run as finished or killed; with any other it has failed."""
_LONGEST_ID = 128
"""Most characters of a run's id in W&B."""


class WandbTracker(ServerTracker):
    """One W&B run for any world size, which later attempts continue: its id is that of the run.

    Args:
        project: the configuration's tracking.wandb.
        config: the whole configuration, which becomes the run's, without secrets.
        directory: local directory in which W&B makes its directory `wandb`.
        published: the path of the latter in the run directory.
        run_id: Howdah's id of the run.
        provenance: tags and dataset of the run. Its report is not sent: it shows texts of rows.
        say: called with the run's address, and with a line when W&B stops answering (once).
    """

    def __init__(
        self,
        project: str,
        config: Config,
        *,
        directory: str,
        published: str,
        run_id: str,
        run_name: str,
        provenance: Provenance,
        say: Callable[[str], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__("W&B", say, check)
        self._published = published
        self._ending = provenance.ending
        self._unsent_directory: str | None = None
        self._last_lines: deque[str] = deque(maxlen=2)
        entity, _, name = project.rpartition("/")
        facts = _plain_names(provenance.tags)
        if provenance.dataset is not None:
            facts |= dict(zip(("dataset", "dataset_hash"), provenance.dataset, strict=True))
        os.makedirs(directory, exist_ok=True)
        read_end, self._pipe = os.pipe()
        with os.fdopen(read_end, "rb") as stdin:
            # At this process's end it reads the pipe's end, and can still record what it has.
            self._child = Child(
                isolation.module("howdah.training.run.wandb_process"),
                env=isolation.environment() | {"WANDB_SILENT": "true"},
                on_line=self._last_lines.append,
                on_stdout=self._take,
                stdin=stdin,
                death_signal=None,
            )
        self._first: dict[str, Any] | None = {
            "entity": entity or None,
            "project": name,
            "id": run_id[-_LONGEST_ID:].lstrip("._-"),
            "name": run_name,
            "directory": directory,
            "config": redact.config(config).model_dump(mode="json") | {"howdah": facts},
            "rank": os.getpid(),
        }
        self._start()

    def _take(self, line: str) -> None:
        """Take a line of the child: where the run is, or why there is none."""
        answer = json.loads(line)
        if warning := answer.get("warning"):
            self._warn(f"W&B: {redact.text(warning)}")
        if answer.get("unsent"):
            self._unsent_directory = answer["directory"]
        elif address := answer.get("address"):
            self._say(f"W&B run: {address}")

    def _write(self, message: dict[str, Any]) -> None:
        """Send the child a message, which blocks while its pipe is full."""
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            data = data[os.write(self._pipe, data) :]

    def _deliver(self, points: list[Point]) -> None:
        try:
            if self._first is not None:
                self._write(self._first)
                self._first = None
            for point in points:
                self._write({"step": point.step, "values": point.values, "time": point.seconds})
        except OSError:  # the child has ended
            if self._over:
                return
            self._child.read_rest()
            reason = redact.text(" | ".join(self._last_lines)) or f"exit code {self._child.wait()}"
            self._warn(f"W&B gets no metrics: {reason}")

    def _end(self, status: str | None) -> None:
        self._deliver([])
        last: dict[str, Any] = {"handed_over": True}
        if status is not None:
            summary = {name: _number(value) for name, value in _plain_names(self._ending()).items()}
            last = {"code": _CODES.get(status, 1), "summary": summary}
        with contextlib.suppress(OSError):
            self._write(last)
        os.close(self._pipe)
        if status is None:
            return
        self._child.wait(CLOSE_SECONDS)
        self._child.read_rest()
        if (directory := self._unsent_directory) is not None:
            copied = ""
            if not storage.is_local(self._published):
                published = storage.join(self._published, os.path.basename(directory))
                copied, directory = f"copy {published} to a local directory DIR; ", "DIR"
            self._say(f"W&B run, not sent: {copied}`wandb sync {directory}` sends it")

    def abandon(self) -> None:
        """Stop sending, because a later attempt has W&B's run: the process must not end it."""
        super().abandon()
        self._child.end(signal.SIGKILL)

    def close(self, status: str) -> None:
        """Send waiting values and end W&B's run, unless W&B does not answer in time."""
        super().close(status)
        if self._thread.is_alive():
            with activity.current().at_most(CLOSE_SECONDS):
                self._child.end(signal.SIGKILL)


def _number(text: str) -> str | float:
    """A tag's number, by which W&B can sort runs; any other text as it is."""
    try:
        return float(text)
    except ValueError:
        return text


def _plain_names(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags without the prefixes that MLflow's need."""
    return {
        name.removeprefix("howdah.").removeprefix("mlflow.").removeprefix("source."): value
        for name, value in tags.items()
        if name not in ("mlflow.source.name", "mlflow.source.type")
    }
