"""The first hour: `make demo` twice in a fresh clone with empty caches, then a user's own files.

    python -m bench firsthour              all of it, about half an hour
    FIRSTHOUR_CLONE=DIR python -m bench firsthour    the commands only, in a clone that is set up

The clone has the committed files. System packages that are there are not removed first, so that
what apt takes on a bare machine is missing from the figures. There is no peer: the figures stand
beside the bars of docs/benchmarks.md.
"""

from __future__ import annotations

import csv
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from bench import harness
from tools.demo import corpus

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("networkx", "numpy", "scipy", "sqlalchemy")
ROUNDS = 3  # of commands that take a second or two
_STAGE = re.compile(r"=== \[\d+/\d+\] (.*)")
_STEP = re.compile(r"\bstep +\d+ ?/ ?\d+")


def main() -> None:
    """Run the demo and the commands; print and save their seconds."""
    with tempfile.TemporaryDirectory(prefix="firsthour-") as folder:
        home = Path(folder)
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("HOWDAH_", "UV_CACHE"))},
            "XDG_CACHE_HOME": str(home / "cache"),
        }
        for name in ("VIRTUAL_ENV", "PYTHONPATH", "MAKEFLAGS", "MAKELEVEL"):
            environment.pop(name, None)
        demos = []
        if clone := os.environ.get("FIRSTHOUR_CLONE"):
            environment["XDG_CACHE_HOME"] = os.path.expanduser("~/.cache")
        else:
            clone = str(home / "howdah")
            subprocess.run(["git", "clone", "-q", str(ROOT), clone], check=True)
            demos = [demo(clone, environment, name) for name in ("first demo", "second demo")]
        commands = list(own_files(Path(clone), home / "my files", environment))
    for result in demos:
        print(f"\n{result['what']}: {result['seconds']:.0f} s, first step after", end=" ")
        print(f"{result['first_step']:.0f} s" if result["first_step"] else "(none seen)")
        for stage, seconds in result["stages"]:
            print(f"  {seconds:6.0f} s  {stage}")
    print("\n| command | seconds | exit code |\n|---|--:|--:|")
    for command in commands:
        print(f"| {command['what']} | {command['seconds']:.2f} | {command['code']} |")
    harness.report("firsthour", [], demos=demos, commands=commands)


def demo(clone: str, environment: dict[str, str], what: str) -> dict:
    """Run `make demo`; its seconds, those of its stages, and those to the first training step."""
    print(f"{what} ...", file=sys.stderr, flush=True)
    began = time.monotonic()
    stages: list[tuple[str, float]] = []
    first_step = None
    stage, stage_began = "set-up", began
    with subprocess.Popen(
        ["make", "demo"], cwd=clone, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    ) as process:  # fmt: skip
        log = []
        for line in process.stdout:
            now = time.monotonic()
            log.append(f"{now - began:7.1f} {line}")
            if match := _STAGE.search(line):
                stages.append((stage, now - stage_began))
                stage, stage_began = match[1], now
            elif first_step is None and "training" in stage and _STEP.search(line):
                first_step = now - began
    seconds = time.monotonic() - began
    stages.append((stage, time.monotonic() - stage_began))
    harness.RESULTS.mkdir(exist_ok=True)
    (harness.RESULTS / f"firsthour-{what.replace(' ', '-')}.log").write_text("".join(log))
    if process.returncode:
        raise SystemExit(f"{what} failed:\n" + "".join(log[-30:]))
    return {"what": what, "seconds": seconds, "first_step": first_step, "stages": stages}


def own_files(clone: Path, folder: Path, environment: dict[str, str]) -> Iterator[dict]:
    """Run the commands of a user's first hour on files that a spreadsheet could have written."""
    folder.mkdir()
    rows = _rows()
    _write(folder / "messages.csv", rows[:3000])
    _write(folder / "hundred.csv", rows[:100])

    def run(what: str, *words: str, rounds: int = 1, stdin: str = "", code: int = 0) -> dict:
        print(f"{what} ...", file=sys.stderr, flush=True)
        seconds = []
        for _ in range(rounds):
            began = time.monotonic()
            done = subprocess.run(
                [str(clone / ".venv/bin/howdah"), *words], cwd=folder, env=environment,
                input=stdin, capture_output=True, text=True, check=False,
            )  # fmt: skip
            seconds.append(time.monotonic() - began)
        if done.returncode != code:
            raise SystemExit(f"{what} ended with {done.returncode}:\n{done.stderr}{done.stdout}")
        return {
            "what": what,
            "seconds": statistics.median(seconds),
            "code": done.returncode,
            "last_lines": (done.stderr + done.stdout).splitlines()[-6:],
        }

    quick = {"rounds": ROUNDS}
    run_yaml = ("--config", "run.yaml")
    yield run("howdah --help", "--help", **quick)
    yield run("config init --source", "config", "init", "run.yaml", "--source", "messages.csv")
    yield run("config check", "config", "check", *run_yaml, **quick)
    yield run("etl --check", "etl", "--check", *run_yaml, **quick)
    yield run("train without a dataset", "train", *run_yaml, **quick, code=3)
    hundred = ("--set", "data.source=hundred.csv", "--set", "data.dataset=hundred")
    yield run("etl, 100 rows", "etl", *run_yaml, *hundred)
    yield run("etl, 3,000 rows", "etl", *run_yaml)
    yield run("plan", "plan", *run_yaml)
    yield run("train, 60 steps", "train", *run_yaml, "--set", "training.max_steps=60")
    yield run("train again", "train", *run_yaml, "--set", "training.max_steps=60")
    with open(folder / "run.yaml") as file:
        directory = yaml.safe_load(file)["run"]["directory"]
    yield run("status", "status", directory, **quick)
    yield run("runs", "runs", **quick)
    yield run("publish, below the gate", "publish", *run_yaml, code=1)
    text = "Return the eigenvalues of a square array.\n"
    yield run("predict --stdin", "predict", "--model", directory, "--stdin", stdin=text, **quick)
    files = ("--source", "messages.csv", "--output", "out.csv")
    yield run("predict, 3,000 rows", "predict", "--model", directory, *files)
    for what, name in _mistakes(folder, rows[:100]):
        words = ("--set", f"data.source={name}", "--set", "data.dataset=mistake")
        yield run(f"etl of {what}", "etl", *run_yaml, *words, code=3)


def _rows() -> list[tuple[str, str, str]]:
    """Docstrings of installed packages, in a fixed order without meaning."""
    rows = sorted(corpus.corpus(PACKAGES), key=lambda row: row[0][::-1])
    return [(key, text[:500], label) for key, text, label in rows if text.strip()]


def _write(path: Path, rows: Sequence[tuple[str, str, str]], **dialect: str) -> None:
    encoding = dialect.pop("encoding", "utf-8")
    with open(path, "w", newline="", encoding=encoding, errors="ignore") as file:
        writer = csv.writer(file, lineterminator="\r\n", **dialect)
        writer.writerows([("id", "text", "label"), *rows])


def _mistakes(folder: Path, rows: Sequence[tuple[str, str, str]]) -> Iterator[tuple[str, str]]:
    """Files with the mistakes that the first MiB of a file tells; (what, name)."""
    texts = [(key, f"{text} – “café”", label) for key, text, label in rows]
    _write(folder / "semicolons.csv", rows, delimiter=";")
    yield "semicolons", "semicolons.csv"
    _write(folder / "excel.csv", texts, encoding="cp1252")
    yield "windows-1252", "excel.csv"
    (folder / "array.json").write_text('[\n  {"id": "1", "text": "a b", "label": "x"}\n]\n')
    yield "a JSON array", "array.json"
    with open(folder / "columns.csv", "w") as file:
        file.write("key,message,category\n1,some text,a\n2,other text,b\n")
    yield "other columns", "columns.csv"
    (folder / "book.xlsx").write_bytes(b"PK\x03\x04" + bytes(200))
    yield "a workbook", "book.xlsx"
    _write(folder / "one.csv", [(key, text, "same") for key, text, _ in rows])
    yield "one class", "one.csv"
    (folder / "empty.csv").write_text("")
    yield "an empty file", "empty.csv"
    with open(folder / "quote.csv", "w") as file:
        file.write('id,text,label\n1,"never closed,a\n' + "2,fine,b\n" * 40)
    yield "an unclosed quote", "quote.csv"
    yield "a path that is not there", "no such file.csv"
