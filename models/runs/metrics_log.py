"""metrics.jsonl: one line a logged step or evaluation, with the attempt that wrote it."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from typing import Any

from howdah import storage
from howdah.config.metric_table import METRICS
from howdah.faults import typed
from howdah.storage import growing
from howdah.storage.shapes import COUNT, NUMBER, TEXT, Fields, fault

FILE_NAME = "metrics.jsonl"


class MetricsLog:
    """Appends lines to a local file; of a remote run what is there already is fetched first.

    Args:
        path: local file.
        published: its path in the run directory; the same as `path` for a local run.
        attempt: number of this attempt.
        check: called before what changes the published file; raises where this process may not
            write any more. (Of a remote run the mirror asks before it publishes.)
    """

    def __init__(
        self,
        path: str,
        published: str,
        attempt: int,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._path, self._published = path, published
        self._check = check
        self._at_once = storage.is_local(published)
        """What is written to `path` is published by that."""
        if not storage.is_local(published):
            growing.fetch(published, path)
        with typed(published, "write"):
            self.last = _end_last_line(path)
            """Position of the last line that was there already."""
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - kept open
        self._attempt = attempt

    def write(self, **values: Any) -> None:
        """Add a line; numbers that JSON does not know (NaN) become null."""
        plain = {key: _plain(value) for key, value in values.items()}
        # Not `_plain`: seven digits of it are steps of a thousand seconds.
        line = {"attempt": self._attempt, **plain, "time": round(time.time(), 3)}
        if self._at_once:
            self._check()
        self._file.write(json.dumps(line, allow_nan=False) + "\n")
        self._file.flush()

    def set_aside(self) -> str:
        """Empty the file, whose lines belong to another history. Returns where they are kept."""
        aside = f"superseded-{storage.name(self._published)}.{self._attempt}"
        kept = storage.join(storage.parent(self._published), aside)
        self._check()
        storage.upload(self._path, kept)
        self._file.truncate(0)
        self.last = (-1, False)
        return kept

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


def position_of(line: dict) -> tuple[int, bool]:
    """Position of a line: its step, and evaluations after the step itself."""
    return int(line["step"]), "split" in line


_FIGURES = ("epoch", "loss", "lr", "grad_norm", "examples_per_second", "tokens_per_second",
            "padding_ratio", "input_wait", "time")  # fmt: skip
_LINE = Fields(
    {
        "attempt": COUNT,
        "step": COUNT,
        **dict.fromkeys(_FIGURES, NUMBER),
        "split": TEXT,
        "metrics": Fields(dict.fromkeys(METRICS, NUMBER)),
    },
    needed=("attempt", "step"),
)


def _line(text: bytes) -> dict | None:
    """A line; None: it is damaged, as a killed attempt's last one, which was cut short, or as one
    that another program has written."""
    try:
        found = json.loads(text.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None
    return found if fault(found, _LINE) is None else None


def _end_last_line(path: str) -> tuple[int, bool]:
    """Cut a last line that a killed attempt has not finished; the last whole one's position."""
    if not os.path.exists(path):
        return -1, False
    with open(path, "rb+") as file:
        data = file.read()
        if data and not data.endswith(b"\n"):
            data = data[: data.rfind(b"\n") + 1]
            file.truncate(len(data))
    found = (_line(line) for line in reversed(data.splitlines()))
    return next((position_of(line) for line in found if line is not None), (-1, False))


def read_metrics(run_directory: str) -> list[dict]:
    """The lines that count: where steps were done more than once, the last ones.

    A step that is done again, by a later attempt or by ranks that have gone on from memory, takes
    the place of everything that was logged from that step on.
    """
    found = growing.read(storage.join(run_directory, FILE_NAME))
    if found is None:
        return []
    lines = [line for text in found[0].splitlines() if (line := _line(text)) is not None]
    # By attempts: one that was taken for dead may have written a line after its successor.
    return _once(sorted(lines, key=lambda line: line["attempt"]))


def _once(lines: list[dict]) -> list[dict]:
    """The lines without those of steps that were done again."""
    kept: list[dict] = []
    reached = -1
    for line in lines:
        if "split" in line:  # it may be of an earlier step, the best one: later steps still count
            same = (line["split"], line["step"])
            kept = [one for one in kept if (one.get("split"), one["step"]) != same]
        else:
            if line["step"] <= reached:
                kept = [one for one in kept if one["step"] < line["step"]]
            reached = line["step"]
        kept.append(line)
    return kept


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of nested mappings by path: {"a": {"b": 1}} -> {"a/b": 1.0}; lists left out."""
    out: dict[str, float] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            out |= flat(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            out[prefix + key] = float(value)
    return out
