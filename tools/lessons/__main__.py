"""Run the lessons and write one page of what they showed: build/lessons/index.html.

    python -m tools.lessons [07 18 ...]

A lesson that is not run keeps what its last run showed. Exit code 1: a lesson failed.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from howdah.core.cache import cache_root
from howdah.errors import ConfigError
from howdah.pages.figures import duration
from tools import minilm
from tools.demo import corpus
from tools.demo.steps import guarded, say
from tools.lessons import page
from tools.lessons.lesson import Lesson, Result, lessons, run

PLACE = Path("build/lessons")


def environment(running: list[Lesson]) -> dict[str, str]:
    """The environment of these lessons' commands.

    TEXTS is a Parquet file of labelled texts, MODEL a pretrained DistilBERT: what the commands name
    is made where it is missing.
    """
    names = "".join(lesson.block for lesson in running)
    path = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)))
    environ = {**os.environ, "PATH": path, "MPLBACKEND": "agg", "HF_HUB_OFFLINE": "1"}
    if "$TEXTS" in names:
        environ["TEXTS"] = os.path.abspath(os.path.join(cache_root(), "lessons", "texts.parquet"))
        corpus.write(environ["TEXTS"])
    if "$MODEL" in names:
        model, is_pretrained = minilm.base_model(say)
        environ["MODEL"] = os.path.abspath(model)
        if not is_pretrained:
            say("MODEL has RANDOM weights: an accuracy of a lesson that fine-tunes it says nothing")
    return environ


def chosen(numbers: list[str]) -> list[Lesson]:
    """The lessons of these numbers; all of them if there are none.

    Raises:
        ConfigError: there is no lesson of a number.
    """
    every = {lesson.number: lesson for lesson in lessons()}
    for number in numbers:
        if number.zfill(2) not in every:
            raise ConfigError("there is no such lesson", got=number,
                              expected=f"one of {', '.join(every)}")  # fmt: skip
    return [every[number.zfill(2)] for number in numbers] or list(every.values())


def main() -> int:
    """Run what is asked for, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m tools.lessons", description=__doc__)
    parser.add_argument("numbers", nargs="*", metavar="NN", help="lessons to run; default: all")
    running = chosen(parser.parse_args().numbers)
    environ, failed, seconds = environment(running), [], 0.0
    for lesson in running:
        say(f"{lesson.number} {lesson.title}")
        result = run(lesson, PLACE / lesson.folder.name, environ)
        page.save(result, PLACE / lesson.folder.name)
        seconds += result.seconds
        say(f"   {_outcome(result)}")
        failed += [lesson.number] if result.failed else []
    index = page.write(PLACE)
    good = len(running) - len(failed)
    say(f"\n{good} of {len(running)} lessons ended well, in {duration(seconds)}")
    say(f"page: {os.path.abspath(index)}")
    return 1 if failed else 0


def _outcome(result: Result) -> str:
    if not result.failed:
        return f"{len(result.figures)} figures, {duration(result.seconds)}"
    last = "\n".join(result.errors.strip().splitlines()[-5:])
    return f"FAILED: {result.failed}\n{last}"


if __name__ == "__main__":
    sys.exit(guarded(main))
