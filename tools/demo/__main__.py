"""The demo: corpus -> ETL -> two-process fine-tuning -> evaluation -> export -> prediction, server.

Every step is a command that a user can type as well, and is shown before it runs.

    python -m tools.demo --framework tensorflow|torch
"""

from __future__ import annotations

import os
import sys
import time

from howdah import storage
from howdah.config.loader import load
from tools import minilm
from tools.demo import steps
from tools.demo.steps import CONFIG, Clock, say


def main() -> int:
    """Run the demo; the exit code is that of the step that failed, or 0."""
    parser = steps.command_line("tools.demo", __doc__.splitlines()[0])
    parser.add_argument(
        "--set-up", action="store_true", help="finish the set-up beside the first steps"
    )
    arguments = parser.parse_args()
    clock = Clock(done=1)  # the set-up (tools/demo.sh)
    horovod = steps.Horovod(arguments.framework) if arguments.set_up else None
    stamp = time.strftime("%Y%m%d-%H%M%S")
    config = load(CONFIG, arguments.set)
    run_directory = storage.join(
        storage.parent(config.run.directory), f"{arguments.framework}-{stamp}"
    )

    clock.step("base model")
    base, is_pretrained = minilm.base_model(say)
    say(f"base model: {base}" + ("" if is_pretrained else " (RANDOM weights)"))
    options = steps.settings(run_directory, base, arguments.framework, arguments.set)

    clock.step("corpus: docstrings of the installed packages -> Parquet")
    if arguments.packages or config.data.source == load(CONFIG).data.source:
        steps.module("tools.demo.corpus", config.data.source, *arguments.packages)
    else:
        say(f"your rows: {config.data.source}")

    clock.step("ETL: Parquet -> TFRecords")
    steps.howdah(["etl", *options])

    clock.step("Horovod")
    if horovod is not None:
        horovod.wait()

    clock.step(f"training: {arguments.framework}, {arguments.np} processes")
    steps.howdah(["train", *options, "--np", str(arguments.np)])
    run = storage.read_json(f"{run_directory}/run.json")

    clock.step("sample prediction from the export")
    export = f"{run_directory}/export"
    texts = "".join(text + "\n" for text in steps.SAMPLES)
    predictions = steps.howdah(["predict", "--model", export, "--stdin"], stdin=texts, capture=True)

    clock.step("served: one request over HTTP")
    served = steps.ask_a_server(export)

    clock.step("result")
    clock.end()
    steps.show_metrics(run)
    print(f"\nserved: {served}")
    steps.show_predictions(predictions, is_pretrained=is_pretrained)
    output = {
        "dataset": config.data.dataset,
        "run": run_directory,
        "report": f"{run_directory}/report.html",
        "model": export,
        "predictions": f"{run_directory}/predictions",
    }
    commands = (
        f"echo 'Draw a scatter plot.' | howdah predict --model {run_directory} --stdin",
        f"howdah evaluate --config {run_directory}/config.yaml",
        f"howdah predict --model {run_directory} --source FILE.csv --output out.parquet",
        f"howdah serve --model {run_directory}",
        f"make demo FRAMEWORK={'torch' if arguments.framework == 'tensorflow' else 'tensorflow'}",
        "howdah config init run.yaml --source MY.csv && howdah etl && howdah train",
    )
    paths = {name: os.path.abspath(path) for name, path in output.items()}
    steps.finish(clock, paths, commands)
    return 0


if __name__ == "__main__":
    sys.exit(steps.guarded(main))
