"""Howdah in a notebook (examples/one_run.ipynb).

    from howdah import library as howdah

    config = howdah.load("run.yaml", {"training.max_steps": 100})
    howdah.command("etl", config)
    howdah.command("train", config, "--np", "2")
    howdah.metrics(config)
    model = howdah.open_model(config)  # a ServedModel of models/opened/opened.py
    model.scores([model.clean_text("Stocks fell sharply.")])  # [N, C], C as model.labels

A command runs in a process of its own: Spark, a framework or a rank that is killed never ends the
kernel, which may hold a framework itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import tempfile
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from howdah import storage
from howdah.config import loader
from howdah.config.model import Config
from howdah.core.child import Child
from howdah.errors import ClusterError, HowdahError, NotFound
from howdah.process import isolation

if TYPE_CHECKING:
    import pandas as pd

_GRACE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL, beside the time that a checkpoint may take."""


def load(source: str | Mapping[str, Any], overrides: Mapping[str, Any] | None = None) -> Config:
    """The checked configuration of a YAML file on any storage, or of its sections as a mapping;
    overrides are {"section.key": value}."""
    changes = [f"{key}={json.dumps(value)}" for key, value in (overrides or {}).items()]
    return loader.load(source if isinstance(source, Mapping) else os.fspath(source), changes)


def command(name: str, config: Config, *options: str, say: Callable = print) -> dict:
    """Run `howdah NAME OPTIONS` and return what its `--json` prints; `say` takes its progress.

    The stop button (KeyboardInterrupt) asks the command to save and end; a second press ends it.
    The command's error is raised here as the same class, e.g. DataError or Interrupted.
    """
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    answers, stopped = [], False
    grace = config.checkpoint.grace_seconds + _GRACE_SECONDS
    with tempfile.TemporaryDirectory(prefix="howdah-") as directory:  # of mode 0700: secrets
        path = os.path.join(directory, "run.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(loader.dump_yaml(config))
        argv = isolation.module("howdah.cli", name, *options, "--config", path, "--json")
        env, take = isolation.environment(), answers.append
        with Child(argv, env=env, on_line=lines.put, on_stdout=take, grace=grace) as child:
            while child.alive:
                try:  # in the caller's thread: a notebook attributes what others print to any cell
                    with contextlib.suppress(queue.Empty):
                        say(lines.get(timeout=0.1))
                except KeyboardInterrupt:
                    if stopped:
                        raise
                    stopped = True
                    child.send(signal.SIGINT)
            child.read_rest()
            while not lines.empty():
                say(lines.get())
    answer = json.loads(answers[-1]) if answers and answers[-1].startswith("{") else {}
    if child.code != 0 and "what" in answer:
        raise HowdahError.from_dict(answer)
    if child.code != 0 and not answer:
        raise ClusterError(f"howdah {name} ended without a message", got=f"exit code {child.code}")
    return answer


def metrics(run: Config | str) -> pd.DataFrame:
    """The figures of a run: a row for each logged step, whose `split` is missing, and for each
    evaluation. Nested figures have names like metrics/accuracy."""
    import pandas as pd

    from howdah.models.runs.metrics_log import read_metrics

    if not (lines := read_metrics(_directory(run))):
        raise NotFound("the run has logged no metrics", where=_directory(run))
    return pd.json_normalize([{"split": None, **line} for line in lines], sep="/")


def open_model(model: Config | str, framework: str | None = None) -> Any:
    """The opened model (ServedModel) of a published model, an export or a run directory."""
    from howdah.models.opened import opened as serve

    return serve.open_model(_directory(model), framework=framework)


def _directory(run: Config | str) -> str:
    if not isinstance(run, Config):
        return os.fspath(run)
    storage.configure(retry_seconds=run.run.storage_retry_seconds, user=run.run.user)
    return run.run.directory
