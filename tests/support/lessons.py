"""Runs a lesson as `make lessons` does, in a directory of the test."""

from __future__ import annotations

from pathlib import Path

import pytest

from howdah.process import isolation
from tools import minilm
from tools.lessons.__main__ import chosen, environment
from tools.lessons.lesson import Result, run


class Run:
    """A lesson that ended well: its figures as numbers, its output, its pictures' names."""

    def __init__(self, result: Result) -> None:
        assert not result.failed, f"{result.failed}\n{result.output}\n{result.errors}"
        self.output = result.output
        self.figures = {
            name: float(value.replace(",", "")) for name, (value, _) in result.figures.items()
        }
        self.pictures = [path.name for path in result.pictures]


def run_lesson(number: str, directory: Path, **environ: str) -> Run:
    """Run the commands of a lesson's README; `environ` is added to their environment."""
    (lesson,) = chosen([number])
    if "$MODEL" in lesson.block and not minilm.is_cached():
        pytest.skip("tests fetch nothing: `make demo` or `make lessons` caches the base model")
    started_by_a_shell = isolation.restored(environment([lesson]))
    return Run(run(lesson, directory, started_by_a_shell | environ))
