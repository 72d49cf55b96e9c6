"""Shared parts of the demos: commands that are printed and run, settings, figures, exit codes."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from howdah.config.metric_table import METRICS
from howdah.core.processes import die_with_parent
from howdah.errors import HowdahError, render

CONFIG = "examples/demo.yaml"
STEPS = 9  # of either demo
SAMPLES = (
    "Return the eigenvalues and right eigenvectors of a square array.",
    "Plot y versus x as lines and markers on the current axes.",
    "Join with another DataFrame, using the given join expression.",
    "Fit the random forest classifier to the training data.",
    "Find the shortest path between two nodes of the graph.",
    "Return a SELECT statement with the given WHERE criterion.",
)


def say(line: str = "") -> None:
    """Print a line to stderr; stdout is for results."""
    print(line, file=sys.stderr, flush=True)


class Clock:
    """Numbers the steps of a demo, and counts the seconds of each.

    Args:
        done: number of steps before, such as the set-up in tools/demo.sh.
    """

    def __init__(self, done: int) -> None:
        self._number, self._name = done, ""
        self._start = self._begun = time.monotonic()
        self._steps: list[tuple[str, float]] = []

    def step(self, name: str) -> None:
        """Begin a step."""
        self.end()
        self._number += 1
        self._name, self._begun = name, time.monotonic()
        say(f"\n=== [{self._number}/{STEPS}] {name}")

    def end(self) -> None:
        """End the current step, if any, and print its seconds."""
        if self._name:
            seconds = time.monotonic() - self._begun
            self._steps.append((self._name, seconds))
            say(f"    {seconds:.0f} s")
            self._name = ""

    def show(self) -> None:
        """Print the seconds of each step, and of all."""
        print("\ntime: " + ", ".join(f"{name.split(':')[0]} {s:.0f} s" for name, s in self._steps))
        print(f"      {time.monotonic() - self._start:.0f} s in total")


def howdah(
    arguments: Sequence[str],
    *,
    stdin: str | None = None,
    capture: bool = False,
    may_fail: bool = False,
) -> str:
    """Print and run a `howdah` command; return its captured stdout. A failure ends the demo.

    Args:
        may_fail: exit code 1, a failed check, is also a result.
    """
    say(f"$ howdah {shlex.join(arguments)}")
    argv = [sys.executable, "-m", "howdah.cli", *arguments]
    return run(argv, stdin=stdin, capture=capture, good=(0, 1) if may_fail else (0,))


def module(name: str, *arguments: str, capture: bool = False) -> str:
    """Print and run a module; return its captured stdout. A failure ends the demo."""
    say(f"$ python -m {name} {shlex.join(arguments)}")
    return run([sys.executable, "-m", name, *arguments], capture=capture)


def run(
    argv: Sequence[str],
    *,
    stdin: str | None = None,
    capture: bool = False,
    good: Sequence[int] = (0,),
) -> str:
    """Run a command; return its captured stdout. An exit code that is not `good` ends the demo."""
    done = subprocess.run(
        argv,
        input=stdin,
        text=True,
        stdout=subprocess.PIPE if capture else sys.stderr,
        check=False,
        preexec_fn=_ending_with_us(),
    )
    if done.returncode not in good:
        say(f"demo: stopped, since the command failed with exit code {done.returncode}")
        sys.exit(done.returncode)
    return done.stdout or ""


class Horovod:
    """Horovod's compilation by the set-up, which goes on beside the demo's first steps."""

    def __init__(self, framework: str) -> None:
        self.log = os.path.abspath("build/setup-logs/demo-horovod.log")
        os.makedirs(os.path.dirname(self.log), exist_ok=True)
        with open(self.log, "wb") as log:
            self._process = subprocess.Popen(
                ["tools/setup.sh", "--demo", framework], stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, preexec_fn=_ending_with_us(),
            )  # fmt: skip

    def wait(self) -> None:
        """Wait until it is installed; a failure prints the set-up's error and ends the demo."""
        if self._process.poll() is None:
            say(f"compiling Horovod for this machine, once; log: {self.log}")
        if code := self._process.wait():
            with open(self.log, encoding="utf-8", errors="replace") as log:
                say(log.read().rstrip())
            say("demo: stopped, since Horovod's set-up failed")
            sys.exit(code)


def _ending_with_us() -> Callable[[], None]:
    """Hook for a command's process: the kernel sends it SIGTERM when the demo ends in any way."""
    return partial(die_with_parent, signal.SIGTERM, os.getpid())


def settings(
    run_directory: str, base: str, framework: str, overrides: Sequence[str] = ()
) -> list[str]:
    """--config and --set of every step; the demo's own values come last and win."""
    run = f"run.directory={run_directory}"
    values = (*overrides, run, f"model.base={base}", f"training.framework={framework}")
    return ["--config", CONFIG, *(word for value in values for word in ("--set", value))]


def command_line(prog: str, description: str) -> argparse.ArgumentParser:
    """A parser of the options that both demos have."""
    parser = argparse.ArgumentParser(prog=f"python -m {prog}", description=description)
    parser.add_argument("--framework", choices=["tensorflow", "torch"], default="tensorflow")
    parser.add_argument("--np", type=int, default=2, help="ranks")
    parser.add_argument(
        "--set", action="append", default=[], metavar="section.key=value", help="an override"
    )
    parser.add_argument(
        "--packages", nargs="+", metavar="PACKAGE", default=[],
        help="installed packages whose docstrings are the corpus; default: a built-in list",
    )  # fmt: skip
    return parser


def ask_a_server(model: str) -> str:
    """Start `howdah serve` on a free port, send one HTTP request, end it; return the answer as a
    line. A failure ends the demo."""
    arguments = ["serve", "--model", model, "--port", "0", "--json"]
    say(f"$ howdah {shlex.join(arguments)}")
    process = subprocess.Popen(
        [sys.executable, "-m", "howdah.cli", *arguments], stdout=subprocess.PIPE, text=True,
        preexec_fn=_ending_with_us(),
    )  # fmt: skip
    try:
        ready = json.loads(process.stdout.readline() or "{}")
        if "url" not in ready:
            say("demo: stopped, since the server did not start")
            sys.exit(process.wait() or 1)
        body = json.dumps({"text": SAMPLES[1]})
        say(f"$ curl -s {ready['url']}/v1/classify -d {shlex.quote(body)}")
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{ready['url']}/v1/classify", body.encode(), timeout=60) as answer:
            result = json.load(answer)
    except OSError as error:
        say(f"demo: stopped, since the server did not answer: {error}")
        sys.exit(1)
    finally:
        process.terminate()
        process.wait()
    one = result["prediction"]
    return (
        f"{one['label']} {one['score']:.1%} of {SAMPLES[1]!r}, by run {result['run_id']}"
        f" ({ready['framework']})"
    )


def show_metrics(run: dict) -> None:
    """The final evaluation as a small table."""
    metrics = run["metrics"]
    print(f"{'':<20}" + "".join(f"{split:>12}" for split in metrics))
    for name in METRICS:
        if not all(name in split for split in metrics.values()):
            continue  # a metric of another task
        values = (split[name] for split in metrics.values())
        print(f"{name:<20}" + "".join(f"{'–' if v is None else f'{v:.4f}':>12}" for v in values))
    print(f"{'rows':<20}" + "".join(f"{split['rows']:>12,}" for split in metrics.values()))


def show_predictions(lines: str, *, is_pretrained: bool) -> None:
    """Print the model's prediction for each sample, with a note if its base is a random one."""
    print("\nsample predictions (package that a docstring comes from):")
    for text, line in zip(SAMPLES, lines.splitlines(), strict=True):
        row = json.loads(line)
        print(f"  {row['label']:<12} {row['scores'][row['label']]:>6.1%}  {text}")
    if not is_pretrained:
        print("\nNOTE: no pretrained weights were available; these are figures of a RANDOM base.")


def finish(clock: Clock, output: Mapping[str, str], commands: Sequence[str]) -> None:
    """Print times, where the output is, and commands to try next."""
    clock.show()
    print("\noutput")
    for name, path in output.items():
        print(f"  {name:<12} {path}")
    print("\nnext (with .venv/bin on the PATH)")
    for command in commands:
        print(f"  {command}")


def guarded(main: Callable[[], int]) -> int:
    """Run `main` and return its exit code; an error is printed without a traceback. SIGTERM ends
    what `main` has started, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        return main()
    except HowdahError as error:
        say(f"howdah: {render(error)}")
        return error.exit_code
    except KeyboardInterrupt:
        say("interrupted")
        return 130
