"""metrics.jsonl: one line per logged step or evaluation, with the attempt that wrote it."""

from __future__ import annotations

import errno
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
    """Appends lines to a local file; for a remote run, earlier attempts' lines are fetched first.

    Args:
        published: the file's path in the run directory; the same as `path` for a local run.
        check: called before the published file changes; raises if this process may not write any
            more. (For a remote run, the mirror checks before it publishes.)
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
        """True if writing to `path` publishes the line, without a mirror."""
        if not storage.is_local(published):
            growing.fetch(published, path)
        with typed(published, "write"):
            self.last = _end_last_line(path)
            """Position of the last line that earlier attempts wrote."""
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - kept open
        self._attempt = attempt
        self._unwritten = b""
        """Lines, or a part of one, for which the disk had no room."""

    def write(self, **values: Any) -> None:
        """Add a line; NaN and infinity, which JSON does not have, become null.

        A full disk ends no training: lines stay in memory until there is room.
        """
        plain = {key: _plain(value) for key, value in values.items()}
        # `_plain` keeps seven digits, which would round the time to a thousand seconds.
        line = {"attempt": self._attempt, **plain, "time": round(time.time(), 3)}
        if self._at_once:
            self._check()
        self._unwritten += json.dumps(line, allow_nan=False).encode() + b"\n"
        self._write_out()

    def _write_out(self) -> None:
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise

    def set_aside(self) -> str:
        """Empty the file, whose lines belong to another history. Returns the path of their copy."""
        aside = f"superseded-{storage.name(self._published)}.{self._attempt}"
        target = storage.join(storage.parent(self._published), aside)
        self._check()
        storage.upload(self._path, target)
        self._file.truncate(0)
        self._unwritten = b""
        self.last = (-1, False)
        return target

    def close(self) -> None:
        """Close the file."""
        self._write_out()
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
    """Sort key of a line: its step; an evaluation follows the step's line."""
    return int(line["step"]), "split" in line


_FIGURES = (
    "epoch", "loss", "lr", "grad_norm", "examples_per_second", "tokens_per_second",
    "padding_ratio", "input_wait", "time",
)  # fmt: skip
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
    """A line; None if it is damaged: cut short because the attempt was killed, or written by
    another program."""
    try:
        line = json.loads(text.decode("utf-8", errors="replace"))
    except (ValueError, RecursionError):
        return None
    return line if fault(line, _LINE) is None else None


def _end_last_line(path: str) -> tuple[int, bool]:
    """Cut off a last line that a killed attempt left incomplete. Returns the position of the last
    complete line."""
    if not os.path.exists(path):
        return -1, False
    with open(path, "rb+") as file:
        data = file.read()
        if data and not data.endswith(b"\n"):
            data = data[: data.rfind(b"\n") + 1]
            file.truncate(len(data))
    lines = (_line(line) for line in reversed(data.splitlines()))
    return next((position_of(line) for line in lines if line is not None), (-1, False))


def read_metrics(run_directory: str) -> list[dict]:
    """The lines that count: if a step was done more than once, those of the last time.

    A step that is repeated, by a later attempt or by ranks that resumed from memory, replaces all
    lines from that step on.
    """
    contents = growing.read(storage.join(run_directory, FILE_NAME))
    if contents is None:
        return []
    lines = [line for text in contents[0].splitlines() if (line := _line(text)) is not None]
    # Sorted by attempt: an attempt that was considered dead may have written after its successor.
    return _once(sorted(lines, key=lambda line: line["attempt"]))


def _once(lines: list[dict]) -> list[dict]:
    """The lines without those that a repeated step replaces."""
    counted: list[dict] = []
    reached = -1
    for line in lines:
        if "split" in line:  # it may evaluate an earlier, best step: later steps still count
            same = (line["split"], line["step"])
            counted = [one for one in counted if (one.get("split"), one["step"]) != same]
        else:
            if line["step"] <= reached:
                counted = [one for one in counted if one["step"] < line["step"]]
            reached = line["step"]
        counted.append(line)
    return counted


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of nested mappings by path: {"a": {"b": 1}} -> {"a/b": 1.0}, without lists."""
    out: dict[str, float] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            out |= flat(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            out[prefix + key] = float(value)
    return out
