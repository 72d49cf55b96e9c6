"""Metrics of a run's steps and evaluations: computes rates and passes metrics to their outputs.

Every rank counts; rank 0 writes them to the console, metrics.jsonl, TensorBoard and MLflow.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from howdah import redact
from howdah.config.metric_table import SHOWN
from howdah.core.speed import Speed
from howdah.models.runs.metrics_log import MetricsLog, flat, position_of
from howdah.training.checkpoint.state import TrainState
from howdah.training.run.progress import Progress, StepMetrics, write_line
from howdah.training.run.tracking import ServerTracker, TensorBoard

_KEPT_LINES = 1000
"""Number of lines that ranks other than 0 keep: those since rank 0's last publication."""


class MetricsLogger:
    """Counts rows, tokens and time, and shows them every `logging_steps`.

    Args:
        logging_steps: number of steps between two that are shown.
        console: stream that progress is shown on; None on ranks other than 0.
    """

    def __init__(self, logging_steps: int, *, console: TextIO | None, log: TextIO | None) -> None:
        self._logging_steps = logging_steps
        self._progress = None if console is None else Progress(console)
        self._log = log
        self._metrics: MetricsLog | None = None
        self._unwritten: deque[dict[str, Any]] = deque(maxlen=_KEPT_LINES)
        self._trackers: list[TensorBoard | ServerTracker] = []
        self._total_steps = 1
        self._marked: float | None = None
        self._own_seconds = self._input_seconds = 0.0
        self._window, self._speed = _Window(), Speed()

    # ---------------------------------------------------------------------- where they go
    def write_to(self, metrics: MetricsLog) -> None:
        """Write lines to metrics.jsonl from now on."""
        self._metrics = metrics

    def _write(self, **values: Any) -> None:
        if self._metrics is not None:
            self._metrics.write(**values)
        else:
            self._unwritten.append(values)

    def _write_missing(self, upto: int) -> None:
        """Write the lines that a lost rank 0 has not published, up to the step that all ranks
        resume from. Every rank computes the same values, except for times."""
        for line in self._unwritten:
            if self._metrics.last < position_of(line) and line["step"] <= upto:
                self._metrics.write(**line)
        self._unwritten.clear()

    def track(self, tracker: TensorBoard | ServerTracker) -> None:
        """Send metrics to a tracker from now on."""
        self._trackers.append(tracker)

    def say(self, line: str) -> None:
        """Show a line: rank 0 on the console, every rank in its log."""
        if self._progress is not None:
            self._progress.say(redact.text(line))
        self.log(line)

    def log(self, line: str) -> None:
        """Write a line to the log alone."""
        if self._log is not None:
            write_line(self._log, redact.text(line))

    def close(self, status: str) -> None:
        """Finish every file; status is finished, interrupted or failed."""
        self.end()
        for tracker in self._trackers:
            tracker.close(status)
        if self._metrics is not None:
            self._metrics.close()
        self._trackers, self._metrics = [], None

    def hand_over(self) -> None:
        """Stop showing and writing, because another process has become rank 0.

        Lines are kept in memory from now on, as on every rank other than 0.
        """
        self._stop([tracker.hand_over for tracker in self._trackers])

    def abandon(self) -> None:
        """Stop showing and writing, and drop waiting values, because a later attempt has the
        run."""
        self._stop([tracker.abandon for tracker in self._trackers])

    def _stop(self, trackers: list[Callable[[], None]]) -> None:
        if self._progress is not None:
            self._progress.end()
        for stop in trackers:
            stop()
        if self._metrics is not None:
            self._metrics.close()
        self._progress, self._metrics, self._trackers = None, None, []

    def show_on(self, console: TextIO) -> None:
        """Show progress on a stream from now on, because this rank has become rank 0."""
        self._progress = Progress(console)

    # --------------------------------------------------------------------------- stepping
    def begin(self, step: int, *, total_steps: int) -> None:
        """Start the step timer after `step`."""
        if self._metrics is not None:
            self._write_missing(step)
        for tracker in self._trackers:
            tracker.resume(step)
        self._total_steps = total_steps
        if self._progress is not None:
            self._progress.begin(step, total_steps)
        self._own_seconds, self._input_seconds, self._window = 0.0, 0.0, _Window()
        self._speed = Speed()
        self._speed.mark(0.0, step)
        self._marked = time.perf_counter()

    def end(self) -> None:
        """Stop the step timer."""
        if self._progress is not None:
            self._progress.end()
        self._marked = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time inside (evaluation, export) as training, nor in rates."""
        before = time.perf_counter()
        try:
            yield
        finally:
            if self._marked is not None:
                self._marked += time.perf_counter() - before

    def epoch(self, state: TrainState) -> float:
        """Epochs done, with a fraction."""
        return round(state.epochs, 4)

    def summary(self, state: TrainState) -> dict[str, Any]:
        """Fields of run.json about all steps, at the end."""
        seconds = max(state.train_seconds, 1e-9)
        return {
            "steps": state.step,
            "epochs": self.epoch(state),
            "skipped_steps": state.skipped_steps,
            "train_seconds": round(state.train_seconds, 6),
            "examples_per_second": round(state.rows / seconds, 3),
            "tokens_per_second": round(state.tokens / seconds, 3),
        }

    def step_done(
        self,
        state: TrainState,
        *,
        loss: float,
        lr: float,
        grad_norm: float,
        rows: int,
        real_tokens: int,
        padded_tokens: int,
        input_seconds: float = 0.0,
    ) -> float:
        """Count a step; every `logging_steps` show the metrics. Returns the step's seconds.

        Args:
            state: the state, whose `step` is already counted; its rows, tokens and train_seconds
                are counted here.
            loss: the step's loss over the global batch.
            grad_norm: global norm of the reduced gradient before clipping.
            rows: rows of the global batch without padding rows.
            real_tokens: tokens of the global batch without padding.
            padded_tokens: tokens of the global batch with padding.
            input_seconds: time that this rank has waited for batches since the steps began.
        """
        now = time.perf_counter()
        seconds = 0.0 if self._marked is None else now - self._marked
        self._marked = now
        state.rows += rows
        state.tokens += real_tokens
        state.train_seconds += seconds
        self._own_seconds += seconds
        self._window.add(seconds, rows, real_tokens, padded_tokens)
        if self._progress is not None:
            self._progress.step(state.step)
        if state.step % self._logging_steps and state.step != self._total_steps:
            return seconds
        window, self._window = self._window, _Window()
        waited, self._input_seconds = input_seconds - self._input_seconds, input_seconds
        metrics = StepMetrics(
            step=state.step,
            epoch=self.epoch(state),
            loss=loss,
            lr=lr,
            grad_norm=grad_norm,
            examples_per_second=window.rows / max(window.seconds, 1e-9),
            tokens_per_second=window.real_tokens / max(window.seconds, 1e-9),
            padding_ratio=window.padded_tokens / max(window.real_tokens, 1),
            input_wait=min(1.0, waited / max(window.seconds, 1e-9)),
            skipped_steps=state.skipped_steps,
        )
        self._show(metrics)
        return seconds

    def _show(self, metrics: StepMetrics) -> None:
        self._speed.mark(self._own_seconds, metrics.step)
        seconds_left = self._speed.left(self._own_seconds, self._total_steps) or 0.0
        if self._progress is not None:
            self._progress.show(metrics, self._total_steps, seconds_left)
        if self._log is not None:
            write_line(self._log, metrics.line(self._total_steps, seconds_left))
        self._write(**metrics.__dict__)
        values = {f"train/{key}": v for key, v in metrics.__dict__.items() if key != "step"}
        for tracker in self._trackers:
            tracker.log(metrics.step, values)

    def evaluated(
        self, state: TrainState, split: str, metrics: dict[str, Any], *, exported: bool = False
    ) -> None:
        """Show an evaluation during training, or that of the exported model at the end."""
        shown = [
            f"{key} {metrics[key]:.4f}" for key in SHOWN if isinstance(metrics.get(key), float)
        ]
        what = f"the model of step {state.step} on {split}"
        if not exported:
            what = f"{split} at step {state.step}"
        self.say(f"{what}: {' '.join(shown)}")
        self._write(step=state.step, epoch=self.epoch(state), split=split, metrics=metrics)
        for tracker in self._trackers:
            tracker.log(state.step, flat(metrics, f"{split}/"))


class _Window:
    """Sums since the last shown step."""

    def __init__(self) -> None:
        self.seconds, self.rows, self.real_tokens, self.padded_tokens = 0.0, 0, 0, 0

    def add(self, seconds: float, rows: int, real_tokens: int, padded_tokens: int) -> None:
        self.seconds += seconds
        self.rows += rows
        self.real_tokens += real_tokens
        self.padded_tokens += padded_tokens
