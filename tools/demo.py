"""The demo: corpus -> ETL -> two-process fine-tuning -> evaluation -> export -> sample prediction.

Every step is a command that a user can type as well, and is shown before it runs.

    python tools/demo.py --framework tensorflow|torch
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from howdah import storage
from howdah.config import load
from howdah.errors import HowdahError, render
from tools import minilm

CONFIG = "examples/demo.yaml"
SAMPLES = (
    "Return the eigenvalues and right eigenvectors of a square array.",
    "Plot y versus x as lines and markers on the current axes.",
    "Join with another DataFrame, using the given join expression.",
    "Fit the random forest classifier to the training data.",
    "Find the shortest path between two nodes of the graph.",
    "Return a SELECT statement with the given WHERE criterion.",
)


def say(line: str = "") -> None:
    """Tell people something; stdout is left to results."""
    print(line, file=sys.stderr, flush=True)


class Clock:
    """Seconds of each step."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, float]] = []

    def step(self, name: str, number: int, total: int) -> None:
        """Begin a step."""
        self.end()
        self._name, self._begun = name, time.monotonic()
        say(f"\n=== [{number}/{total}] {name}")

    def end(self) -> None:
        """End the step that has begun, if any."""
        if hasattr(self, "_name"):
            self.steps.append((self._name, time.monotonic() - self._begun))
            del self._name

    def show(self, seconds: float) -> None:
        """Print how long each step took, and `seconds`, all of it."""
        print("\ntime: " + ", ".join(f"{name.split(':')[0]} {s:.0f} s" for name, s in self.steps))
        print(f"      {seconds:.0f} s together")


def howdah(words: Sequence[str], *, stdin: str | None = None, capture: bool = False) -> str:
    """Run a `howdah` command and show it; its stdout if captured. Ends the demo where it fails."""
    say(f"$ howdah {shlex.join(words)}")
    return _run([sys.executable, "-m", "howdah.cli", *words], stdin, capture)


def module(name: str, *words: str) -> None:
    """Run a module of the project and show it. Ends the demo where it fails."""
    say(f"$ python -m {name} {shlex.join(words)}")
    _run([sys.executable, "-m", name, *words], None, False)


def _run(argv: Sequence[str], stdin: str | None, capture: bool) -> str:
    done = subprocess.run(
        argv,
        input=stdin,
        text=True,
        stdout=subprocess.PIPE if capture else sys.stderr,
        check=False,
    )
    if done.returncode:
        say(f"the demo stops here: that command ended with exit code {done.returncode}")
        sys.exit(done.returncode)
    return done.stdout or ""


def settings(
    run_directory: str, base: str, framework: str, overrides: Sequence[str] = ()
) -> list[str]:
    """--config and --set words of every step; the demo's own come last and win."""
    words = ["--config", CONFIG]
    own = (
        f"run.directory={run_directory}",
        f"model.base={base}",
        f"training.framework={framework}",
    )
    for override in (*overrides, *own):
        words += ["--set", override]
    return words


def show_metrics(run: dict) -> None:
    """The final evaluation as a small table."""
    metrics = run["metrics"]
    names = ("loss", "accuracy", "macro_f1", "weighted_f1", "roc_auc", "ece")
    print(f"{'':<14}" + "".join(f"{split:>12}" for split in metrics))
    for name in names:
        values = (split[name] for split in metrics.values())
        print(f"{name:<14}" + "".join(f"{'–' if v is None else f'{v:.4f}':>12}" for v in values))
    print(f"{'rows':<14}" + "".join(f"{split['rows']:>12,}" for split in metrics.values()))


def show_predictions(lines: str) -> None:
    """What the model says about each sample."""
    for text, line in zip(SAMPLES, lines.splitlines(), strict=True):
        row = json.loads(line)
        print(f"  {row['label']:<12} {row['scores'][row['label']]:>6.1%}  {text}")


def main() -> int:
    """Run the demo; the exit code is that of the step that failed, or 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=["tensorflow", "torch"], default="tensorflow")
    parser.add_argument("--np", type=int, default=2, help="ranks")
    parser.add_argument(
        "--set", action="append", default=[], metavar="section.key=value", help="an override"
    )
    arguments = parser.parse_args()
    began, clock = time.monotonic(), Clock()
    stamp = time.strftime("%Y%m%d-%H%M%S")
    config = load(CONFIG, arguments.set)
    run_directory = storage.join(
        storage.parent(config.run.directory), f"{arguments.framework}-{stamp}"
    )

    clock.step("base model", 1, 5)
    base, is_pretrained = minilm.base_model(say)
    say(f"base model: {base}" + ("" if is_pretrained else " (RANDOM weights)"))
    words = settings(run_directory, base, arguments.framework, arguments.set)

    clock.step("ETL: docstrings of the installed packages -> TFRecords", 2, 5)
    howdah(["etl", *words])

    clock.step(f"training: {arguments.framework}, {arguments.np} processes", 3, 5)
    howdah(["train", *words, "--np", str(arguments.np), "--launcher", "horovodrun"])
    run = storage.read_json(f"{run_directory}/run.json")

    clock.step("sample prediction from the export", 4, 5)
    export = f"{run_directory}/export"
    texts = "".join(text + "\n" for text in SAMPLES)
    predictions = howdah(["predict", "--model", export, "--stdin"], stdin=texts, capture=True)

    clock.step("result", 5, 5)
    clock.end()
    show_metrics(run)
    print("\nsample predictions (package that a docstring comes from):")
    show_predictions(predictions)
    if not is_pretrained:
        print("\nNOTE: no pretrained weights could be had; these are figures of a RANDOM base.")
    finish(run_directory, config.data.dataset, arguments.framework, clock, time.monotonic() - began)
    return 0


def finish(run_directory: str, dataset: str, framework: str, clock: Clock, seconds: float) -> None:
    """Where everything lies, how long it took, and what to try next."""
    place = os.path.abspath
    clock.show(seconds)
    print("\nwhere everything lies")
    for what, path in (
        ("dataset", dataset),
        ("run", run_directory),
        ("report", f"{run_directory}/report.html"),
        ("model", f"{run_directory}/export"),
        ("predictions", f"{run_directory}/predictions"),
    ):
        print(f"  {what:<12} {place(path)}")
    other = "torch" if framework == "tensorflow" else "tensorflow"
    print("\nnext (with .venv/bin on the PATH)")
    for command in (
        f"echo 'Draw a scatter plot.' | howdah predict --model {run_directory} --stdin",
        f"howdah evaluate --config {run_directory}/config.yaml",
        f"howdah predict --model {run_directory} --source FILE.csv --output out.parquet",
        f"tensorboard --logdir {run_directory}/tensorboard",
        f"make demo FRAMEWORK={other}",
        "howdah config init my.yaml && howdah etl --config my.yaml --source MY.csv",
    ):
        print(f"  {command}")


def guarded(main: Callable[[], int]) -> int:
    """What `main` returns, or the exit code of what it raised, told without a traceback."""
    try:
        return main()
    except HowdahError as error:
        say(f"demo: {render(error)}")
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(guarded(main))
