"""A lesson: a page of text, whose block of commands is what runs, and what the run showed.

A script knows nothing of this: it prints each figure as a line `NAME = VALUE UNIT`, and saves its
pictures as *.svg into the working directory.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from howdah.core.processes import marked
from howdah.errors import DataError
from tools.local_airflow.servers import end_all

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "lessons"
OUTPUT, ERRORS = "output.txt", "errors.txt"
SECONDS = 900
"""After so long a command hangs; no lesson takes half of it."""
_FIGURE = re.compile(
    r"^(?:\[[\d,]+\]<stdout>: ?)?(\S(?:.*?\S)?) = (-?[\d.,]+(?:e[-+]?\d+)?)(?: (\S.*))?$"
)
"""horovodrun and mpirun print a rank's name before its lines."""
_COMMANDS = re.compile(r"^## Run\n.*?^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
_STOPPING = 20.0
_MARK = "HOWDAH_LESSON"
"""Environment variable of all processes of one command."""


@dataclass(frozen=True)
class Lesson:
    """One folder below examples/lessons."""

    folder: Path

    @property
    def number(self) -> str:
        """Two digits."""
        return self.folder.name[:2]

    @property
    def text(self) -> str:
        """The README."""
        return (self.folder / "README.md").read_text("utf-8")

    @property
    def title(self) -> str:
        """The README's first line, without the number."""
        return self.text.partition("\n")[0].lstrip("# ").partition(". ")[2]

    def section(self, name: str = "") -> str:
        """The Markdown below a heading; without a name: what precedes the first one."""
        parts = re.split(r"^## (.*)\n", self.text.partition("\n")[2], flags=re.MULTILINE)
        sections = dict(zip(["", *parts[1::2]], parts[::2], strict=True))
        return sections.get(name, "").strip()

    @property
    def block(self) -> str:
        """The block of commands in the section "Run".

        Raises:
            DataError: the README has none.
        """
        block = _COMMANDS.search(self.text)
        if block is None:
            raise DataError(
                "the lesson has no commands to run", where=str(self.folder / "README.md"),
                expected="a section `## Run` with a block ```sh",
            )  # fmt: skip
        return block[1]

    def commands(self, environ: Mapping[str, str]) -> list[list[str]]:
        """The words of each command of the block.

        $NAMES are replaced from `environ`, and names of the lesson's files by their paths.
        """
        lines = [shlex.split(line) for line in self.block.splitlines() if line.strip()]
        return [[self._word(word, environ) for word in line] for line in lines]

    def _word(self, word: str, environ: Mapping[str, str]) -> str:
        word = re.sub(r"\$([A-Z]+)", lambda name: environ[name[1]], word)
        path = self.folder / word
        return str(path) if path.is_file() else word


@dataclass
class Result:
    """What one run of a lesson printed and drew.

    Attributes:
        figures: name -> (value as it was printed, unit).
        pictures: paths of the SVG files, in the order of their names.
        failed: the command that failed, and how; "" if all ended well.
    """

    lesson: Lesson
    seconds: float = 0.0
    output: str = ""
    errors: str = ""
    figures: dict[str, tuple[str, str]] = field(default_factory=dict)
    pictures: list[Path] = field(default_factory=list)
    failed: str = ""


def lessons() -> list[Lesson]:
    """All lessons, by number."""
    return [Lesson(path) for path in sorted(FOLDER.glob("[0-9][0-9]-*")) if path.is_dir()]


def run(lesson: Lesson, directory: Path, environ: Mapping[str, str]) -> Result:
    """Run a lesson's commands one after the other in a directory, up to the first that fails.

    No process that a command started outlives it.

    Args:
        directory: the commands' working directory, which is emptied first: a lesson that finds
            its own dataset or checkpoint of another day would go on from it, or refuse it.
        environ: the commands' environment.
    """
    if directory.exists():
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    result, began = Result(lesson), time.monotonic()
    for command in lesson.commands(environ):
        if status := _run(command, directory, environ):
            result.failed = f"{shlex.join(command)}: {status}"
            break
    result.seconds = time.monotonic() - began
    result.output, result.errors = (
        path.read_text("utf-8", "replace") if (path := directory / name).exists() else ""
        for name in (OUTPUT, ERRORS)
    )
    result.figures = dict(figures(result.output))
    result.pictures = sorted(directory.glob("*.svg"))
    return result


def figures(output: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Each figure that was printed: its name, and its value with its unit."""
    for line in output.splitlines():
        if match := _FIGURE.match(line.strip()):
            yield match[1], (match[2], match[3] or "")


def links(text: str) -> list[str]:
    """Targets of a README's relative links, without what follows `#`."""
    targets = re.findall(r"\]\(([^)#]+)", text)
    return [target for target in targets if "://" not in target]


def _run(command: list[str], directory: Path, environ: Mapping[str, str]) -> str:
    """Run one command; return how it failed, or ""."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    if command[0] == "python":
        command = [sys.executable, *command[1:]]
    with open(directory / OUTPUT, "ab") as output, open(directory / ERRORS, "ab") as errors:
        process = subprocess.Popen(
            command, cwd=directory, env={**environ, _MARK: mark}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=errors, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(SECONDS)
            return f"exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            return f"no end after {SECONDS} s"
        finally:  # the command, and all that it started
            end_all(lambda: marked(_MARK, mark), grace=_STOPPING)
            process.poll()
