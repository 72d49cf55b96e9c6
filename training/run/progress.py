"""Progress on rank 0's console: a bar on a terminal, else a line every n steps."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True, kw_only=True)
class StepMetrics:
    """Metrics of the steps since the last logged one; a line of metrics.jsonl."""

    step: int
    epoch: float
    """Epochs done, with a fraction."""
    loss: float
    """Loss of the step over the global batch."""
    lr: float
    grad_norm: float
    """Global norm of the reduced gradient before clipping."""
    examples_per_second: float
    tokens_per_second: float
    """Tokens per second without padding."""
    padding_ratio: float
    """Tokens with padding, divided by tokens without."""
    input_wait: float = 0.0
    """Share of the time that this rank waited for its batches."""
    skipped_steps: int = 0
    """Number of steps so far that fp16 skipped because of an infinite gradient."""

    def line(self, total: int, seconds_left: float) -> str:
        """`step 120/900 loss 0.5120 lr 4.10e-05 123 ex/s 8,812 tok/s pad 1.02 eta 3m12s`"""
        return f"step {self.step}/{total} {self._values()} eta {clock(seconds_left)}"

    def _values(self) -> str:
        # Only shown if it matters: then the input is too slow for the steps.
        waits = f" waits for input {self.input_wait:.0%}" if self.input_wait >= 0.05 else ""
        skipped = f" skipped {self.skipped_steps}" if self.skipped_steps else ""
        return (
            f"loss {self.loss:.4f} lr {self.lr:.2e} {self.examples_per_second:,.0f} ex/s"
            f" {self.tokens_per_second:,.0f} tok/s pad {self.padding_ratio:.2f}{waits}{skipped}"
        )


def clock(seconds: float) -> str:
    """Seconds as 42s, 3m12s or 1h04m.

    >>> clock(42.4), clock(192), clock(3840)
    ('42s', '3m12s', '1h04m')
    """
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    return f"{whole // 3600}h{whole % 3600 // 60:02d}m"


def write_line(stream: TextIO, line: str) -> None:
    """Write a line in one call, so that lines of several threads do not mix."""
    stream.write(line + "\n")
    stream.flush()


class Progress:
    """Writes lines, and on a terminal a bar below them.

    Args:
        stream: the output; a bar is drawn if it is a terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._bar = None
        self._task = None

    def begin(self, done: int, total: int) -> None:
        """Draw the bar if the stream is a terminal."""
        if not self._stream.isatty() or os.environ.get("TERM") == "dumb":
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        console = Console(file=self._stream, highlight=False, markup=False)
        figures, eta = TextColumn("{task.fields[figures]}"), TimeRemainingColumn(compact=True)
        columns = MofNCompleteColumn(), BarColumn(bar_width=24), figures, TextColumn("eta"), eta
        # What else is written to stdout and stderr is for the log.
        self._bar = RichProgress(
            *columns, console=console, redirect_stdout=False, redirect_stderr=False
        )
        self._task = self._bar.add_task("steps", total=total, completed=done, figures="")
        self._bar.start()

    def step(self, done: int) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done)

    def show(self, metrics: StepMetrics, total: int, seconds_left: float) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=metrics.step, figures=metrics._values())
        else:
            self.say(metrics.line(total, seconds_left))

    def say(self, line: str) -> None:
        """Write a line, above the bar if there is one."""
        try:
            if self._bar is not None:
                self._bar.console.print(line)
            else:
                write_line(self._stream, line)
        except OSError:  # the terminal or the pipe is gone; the log has every line
            self.end()
            self._stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - kept

    def end(self) -> None:
        """Stop updating the bar, which stays on the screen."""
        bar, self._bar = self._bar, None
        if bar is not None:
            with contextlib.suppress(OSError):  # the terminal is gone
                bar.stop()
