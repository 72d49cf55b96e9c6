"""The demo: corpus -> ETL -> two-process fine-tuning -> evaluation -> export -> prediction, server.

Every step is a command that a user can type as well, and is shown before it runs.

    python -m tools.demo --framework tensorflow|torch
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from howdah import storage
from howdah.config.loader import load
from tools import minilm
from tools.demo import steps
from tools.demo.steps import CONFIG, Clock, say

STEPS = 9  # the first is the set-up (tools/demo.sh)


def main() -> int:
    """Run the demo; the exit code is that of the step that failed, or 0."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--framework", choices=["tensorflow", "torch"], default="tensorflow")
    parser.add_argument("--np", type=int, default=2, help="ranks")
    parser.add_argument(
        "--set", action="append", default=[], metavar="section.key=value", help="an override"
    )
    steps.packages_option(parser)
    parser.add_argument(
        "--set-up", action="store_true", help="finish the set-up beside the first steps"
    )
    arguments = parser.parse_args()
    began, clock = time.monotonic(), Clock()
    horovod = steps.Horovod(arguments.framework) if arguments.set_up else None
    stamp = time.strftime("%Y%m%d-%H%M%S")
    config = load(CONFIG, arguments.set)
    run_directory = storage.join(
        storage.parent(config.run.directory), f"{arguments.framework}-{stamp}"
    )

    clock.step("base model", 2, STEPS)
    base, is_pretrained = minilm.base_model(say)
    say(f"base model: {base}" + ("" if is_pretrained else " (RANDOM weights)"))
    options = steps.settings(run_directory, base, arguments.framework, arguments.set)

    clock.step("corpus: docstrings of the installed packages -> Parquet", 3, STEPS)
    if arguments.packages or config.data.source == load(CONFIG).data.source:
        steps.module("tools.demo.corpus", config.data.source, *arguments.packages)
    else:
        say(f"your rows: {config.data.source}")

    clock.step("ETL: Parquet -> TFRecords", 4, STEPS)
    steps.howdah(["etl", *options])

    clock.step("Horovod", 5, STEPS)
    if horovod is not None:
        horovod.wait()

    clock.step(f"training: {arguments.framework}, {arguments.np} processes", 6, STEPS)
    steps.howdah(["train", *options, "--np", str(arguments.np)])
    run = storage.read_json(f"{run_directory}/run.json")

    clock.step("sample prediction from the export", 7, STEPS)
    export = f"{run_directory}/export"
    texts = "".join(text + "\n" for text in steps.SAMPLES)
    predictions = steps.howdah(["predict", "--model", export, "--stdin"], stdin=texts, capture=True)

    clock.step("served: one request over HTTP", 8, STEPS)
    served = steps.ask_a_server(export)

    clock.step("result", 9, STEPS)
    clock.end()
    steps.show_metrics(run)
    print("\nsample predictions (package that a docstring comes from):")
    steps.show_predictions(predictions)
    print(f"\nserved: {served}")
    if not is_pretrained:
        print("\nNOTE: no pretrained weights were available; these are figures of a RANDOM base.")
    finish(run_directory, config.data.dataset, arguments.framework, clock, time.monotonic() - began)
    return 0


def finish(run_directory: str, dataset: str, framework: str, clock: Clock, seconds: float) -> None:
    """Print times, paths, and commands to try next."""
    clock.show(seconds)
    print("\noutput")
    for what, path in (
        ("dataset", dataset),
        ("run", run_directory),
        ("report", f"{run_directory}/report.html"),
        ("model", f"{run_directory}/export"),
        ("predictions", f"{run_directory}/predictions"),
    ):
        print(f"  {what:<12} {os.path.abspath(path)}")
    other = "torch" if framework == "tensorflow" else "tensorflow"
    print("\nnext (with .venv/bin on the PATH)")
    for command in (
        f"echo 'Draw a scatter plot.' | howdah predict --model {run_directory} --stdin",
        f"howdah evaluate --config {run_directory}/config.yaml",
        f"howdah predict --model {run_directory} --source FILE.csv --output out.parquet",
        f"howdah serve --model {run_directory}",
        f"make demo FRAMEWORK={other}",
        "howdah config init run.yaml --source MY.csv && howdah etl && howdah train",
    ):
        print(f"  {command}")


if __name__ == "__main__":
    sys.exit(steps.guarded(main))
