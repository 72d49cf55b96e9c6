"""metrics.jsonl: one line a logged step or evaluation, with the attempt that wrote it."""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any

from howdah import storage
from howdah.errors import NotFound

__all__ = ["FILE_NAME", "MetricsLog", "read_metrics"]

FILE_NAME = "metrics.jsonl"


class MetricsLog:
    """Appends lines to a local file; of a remote run what is there already is fetched first.

    Args:
        path: local file.
        published: where the file lies for everybody; the same path for a local run.
        attempt: number of this attempt.
    """

    def __init__(self, path: str, published: str, attempt: int) -> None:
        remote = not storage.is_local(published)
        if remote and storage.exists(published):
            storage.download(published, path)
        _end_last_line(path)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - kept open
        self._attempt = attempt

    def write(self, **values: Any) -> None:
        """Add a line; numbers that JSON has no word for (NaN) become null."""
        line = {"attempt": self._attempt, **values, "time": round(time.time(), 3)}
        plain = {key: _plain(value) for key, value in line.items()}
        self._file.write(json.dumps(plain, allow_nan=False) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value


def _end_last_line(path: str) -> None:
    """Cut a last line that a killed attempt has not finished."""
    if not os.path.exists(path):
        return
    with open(path, "rb+") as file:
        data = file.read()
        if data and not data.endswith(b"\n"):
            file.truncate(data.rfind(b"\n") + 1)


def read_metrics(run_directory: str) -> list[dict]:
    """The lines that count: where attempts overlap, the last one's.

    An attempt that goes on from step 75 takes the place of everything that earlier ones logged
    from its own first line on.
    """
    try:
        text = storage.read_text(storage.join(run_directory, FILE_NAME))
    except NotFound:
        return []
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:  # the last line of a killed attempt, cut short
            continue
    kept: list[dict] = []
    upper = math.inf  # first step of a later attempt
    for attempt in sorted({line["attempt"] for line in lines}, reverse=True):
        own = [line for line in lines if line["attempt"] == attempt]
        kept = [line for line in own if line["step"] < upper] + kept
        upper = min([upper, *(line["step"] for line in own)])
    return kept
