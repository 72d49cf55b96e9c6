"""Howdah from Python: what a notebook or a script of one's own calls (docs/library.md).

    from howdah import library as howdah

    config = howdah.load("run.yaml", {"training.max_steps": 100})
    howdah.etl(config)
    howdah.train(config)
    howdah.metrics(config)
    howdah.open_model(config).predict(["stocks fell sharply"])
    howdah.report(config)

`etl` and `train` run as `howdah` commands in processes of their own: Spark, a framework or a rank
that is killed never ends the caller's process, which may hold a framework itself. A
KeyboardInterrupt (the notebook's stop button) asks the command for an orderly end and is raised as
Interrupted once it has ended. Everything else happens in the caller's process. All raise the errors
of howdah/errors.py.

As the command line, this file may import all rooms, inside functions only.
"""

from __future__ import annotations

import html as _html
import json
import os
import queue
import signal
import tempfile
import webbrowser
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from howdah import storage
from howdah.config import loader as _loader
from howdah.config.model import Config
from howdah.core.child import Child
from howdah.errors import ClusterError, HowdahError, NotFound, UsageError
from howdah.process import isolation
from howdah.run_files import REPORT

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Model", "Report", "etl", "load", "metrics", "open_model", "plan", "report", "train"]

_SHOW_SECONDS = 0.1
_GIVEN_UP_SECONDS = 5.0
"""For a command that was interrupted three times, between SIGTERM and SIGKILL."""
_KEPT_LINES = 20

Say = Callable[[str], None]


def load(
    source: str | os.PathLike[str] | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
) -> Config:
    """The checked configuration of a run.

    Args:
        source: a YAML file on any storage, or the sections themselves:
            {"run": {"name": "news"}, "data": {...}}.
        overrides: {"section.key": value}.
    Raises:
        ConfigError: with every problem at once.
        NotFound: no such file.
    """
    changes = [f"{key}={json.dumps(value)}" for key, value in (overrides or {}).items()]
    given = source if isinstance(source, Mapping) else os.fspath(source)
    return _loader.load(given, changes)


def etl(config: Config, *, say: Say | None = None) -> dict[str, Any]:
    """Make the configuration's dataset, as `howdah etl`; a dataset that is there is not made again.

    Args:
        say: takes each line of progress; None: they are printed.
    Returns:
        What `howdah etl --json` prints: path of the version, rows of each split, report, ...
    Raises:
        HowdahError: the command's error, as itself.
    """
    return _command(["etl"], config, say)


def plan(config: Config, *, np: int = 1) -> dict[str, Any]:
    """What training on `np` ranks would do: rows, steps, tokens, padding.

    Raises:
        DataError: there is no dataset yet.
        ConfigError: more ranks than rows in a global batch.
    """
    from howdah.training.planning.preview import preview

    _configure_storage(config)
    return preview(config, world=np)


def train(
    config: Config,
    *,
    np: int = 1,
    resume: str | None = None,
    say: Say | None = None,
) -> dict[str, Any]:
    """Train on this machine, as `howdah train`; a run that was stopped goes on.

    Args:
        np: ranks.
        resume: auto, never, or a checkpoint; None: checkpoint.resume of the configuration.
        say: takes each line of progress; None: they are printed.
    Returns:
        What `howdah train --json` prints: run directory, export, steps, metrics, ...
    Raises:
        Interrupted: after a KeyboardInterrupt; the last step is saved. Interrupted once more, the
            command kills its ranks.
        HowdahError: why training failed, as itself.
    """
    words = ["train", "--np", str(np)]
    return _command(words if resume is None else [*words, "--resume", resume], config, say)


def metrics(run: Config | str) -> pd.DataFrame:
    """The figures of a run, also of one that is training: a row for each logged step, with `split`
    missing, and for each evaluation. Nested figures have names like metrics/accuracy.

    Args:
        run: the configuration, or the run directory.
    Raises:
        NotFound: the run has not logged anything.
    """
    import pandas as pd

    from howdah.models.runs.metrics_log import flat, read_metrics

    directory = _run_directory(run)
    lines = read_metrics(directory)
    if not lines:
        raise NotFound(
            "the run has logged no figures",
            where=directory,
            expected="metrics.jsonl with at least one line",
            remedy="train first, or correct the run directory",
        )
    rows = [{"split": None, **flat(line), **_texts(line)} for line in lines]
    table = pd.DataFrame(rows)
    whole = [name for name in ("attempt", "step") if name in table]
    return table.astype(dict.fromkeys(whole, "int64"))


def _texts(line: Mapping[str, Any]) -> dict[str, str]:
    return {key: value for key, value in line.items() if isinstance(value, str)}


def open_model(model: Config | str, *, framework: str | None = None) -> Model:
    """A trained model in this process, ready to classify.

    Args:
        model: a published model, export or run directory on any storage; or the configuration of
            its run.
        framework: tensorflow, torch or onnx (docs/exports.md); None: the one that this process has
            loaded, else the one that it was trained with.
    Raises:
        ModelError: there is no model, or it is damaged.
    """
    from howdah.models.opened.opened import open_model as open_export

    return Model(open_export(_run_directory(model), framework=framework))


class Model:
    """An opened model."""

    def __init__(self, served: Any) -> None:  # howdah.models.opened.opened.ServedModel
        self._served = served

    @property
    def labels(self) -> list[str]:
        """Label names by number."""
        return list(self._served.labels)

    @property
    def run_id(self) -> str:
        """The run that made it."""
        return self._served.run_id

    @property
    def framework(self) -> str:
        """What it runs with: tensorflow or torch."""
        return self._served.framework

    def predict(self, texts: Sequence[str]) -> pd.DataFrame:
        """Label and scores of each text, which is cleaned and cut as the training data was.

        Returns:
            Columns text, label, score (of that label), one for each label with its score, and
            error: why a text has no label (it is empty), else missing.
        Raises:
            UsageError: a single string, or something that is no string.
        """
        import pandas as pd

        from howdah.serving.prediction.classify import classify
        from howdah.serving.prediction.rows import Row

        if isinstance(texts, str):
            raise UsageError(
                "predict takes a list of texts",
                expected='["a text", "another one"]',
                got="one string",
            )
        self._served.require_labels(where="predict", remedy="use `howdah predict`")
        texts = list(texts)
        for number, text in enumerate(texts):
            if not isinstance(text, str):
                raise UsageError(
                    "a text is no string",
                    where=f"texts[{number}]",
                    expected="str",
                    got=type(text).__name__,
                )
        rows = []
        found = classify(self._served, [Row(str(n), text) for n, text in enumerate(texts)])
        for text, one in zip(texts, found, strict=True):
            scores = [None] * len(self.labels) if one.scores is None else one.scores.tolist()
            named = dict(zip(self.labels, scores, strict=True))
            best = named.get(one.label, None if one.scores is None else max(scores))
            rows.append({"text": text, "label": one.label, "score": best, "error": one.error})
            rows[-1] |= {f"score/{name}": value for name, value in named.items()}
        columns = ["text", "label", "score", "error", *(f"score/{name}" for name in self.labels)]
        return pd.DataFrame(rows, columns=columns)

    def __repr__(self) -> str:
        return f"Model({self._served.path!r}, run {self.run_id}, {self.framework})"


@dataclass(frozen=True)
class Report:
    """A report.html; a notebook shows it where it is a cell's value."""

    path: str
    html: str

    def _repr_html_(self) -> str:
        # In a frame of its own and without scripts: its styles and ours must not meet.
        page = _html.escape(self.html, quote=True)
        return f'<iframe sandbox srcdoc="{page}" width="100%" height="600"></iframe>'

    def __repr__(self) -> str:
        return f"Report({self.path!r})"

    def open(self) -> bool:
        """Show it in the browser; False: there is none, or it is not on this machine."""
        if not storage.is_local(self.path):
            return False
        return webbrowser.open("file://" + os.path.abspath(storage.local_path(self.path)))


def report(of: Config | str) -> Report:
    """The report of a run, or of a dataset version.

    Args:
        of: the run's configuration, a run directory, or a dataset version's directory.
    Raises:
        NotFound: there is none: it is written at the end of training, or of the ETL.
    """
    path = storage.join(_run_directory(of), REPORT)
    return Report(path, storage.read_text(path))


# -------------------------------------------------------------------------------- in a process
def _run_directory(run: Config | str) -> str:
    if isinstance(run, Config):
        _configure_storage(run)
        return run.run.directory
    return os.fspath(run)


def _configure_storage(config: Config) -> None:
    run = config.run
    storage.configure(retry_seconds=run.storage_retry_seconds, user=run.user)


def _command(words: Sequence[str], config: Config, say: Say | None) -> dict[str, Any]:
    """Run `howdah WORDS` in a process of its own; the JSON object that it answers with."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    answers: list[str] = []
    last: deque[str] = deque(maxlen=_KEPT_LINES)
    grace = config.checkpoint.grace_seconds + _GIVEN_UP_SECONDS  # where `say` raises: it may save

    def show(line: str) -> None:
        last.append(line)
        (say or _print)(line)

    # A directory that no other user can read: the configuration may hold secrets.
    with tempfile.TemporaryDirectory(prefix="howdah-") as directory:
        path = os.path.join(directory, "run.yaml")
        with open(path, "w", encoding="utf-8") as file:
            file.write(_loader.dump_yaml(config))
        argv = isolation.module("howdah.cli", *words, "--config", path, "--json")
        env, take = isolation.environment(), answers.append
        with Child(argv, env=env, on_line=lines.put, on_stdout=take, grace=grace) as child:
            _follow(child, lines, show)
            child.read_rest()
            while not lines.empty():
                show(lines.get())
    answer = _object(answers)
    if child.code == 0 and answer is not None:
        return answer
    if answer is not None and "what" in answer:
        raise HowdahError.from_dict(answer)
    raise ClusterError(
        f"howdah {words[0]} ended without saying why",
        expected="exit code 0 and one JSON object",
        got="\n".join([f"exit code {child.code}", *last]),
        remedy="a negative code is the signal that killed it: -9 is often the kernel, out of"
        " memory; what it had saved is kept, and the same call goes on from there",
    )


def _follow(child: Child, lines: queue.SimpleQueue[str], say: Say) -> None:
    """Show lines, in the caller's thread, until the command has ended; pass interrupts on."""
    asked = 0
    while True:
        try:
            if not child.alive:
                return
            say(lines.get(timeout=_SHOW_SECONDS))
        except queue.Empty:
            continue
        except KeyboardInterrupt:
            # Its own session keeps a terminal's Ctrl-C from it. First: an orderly end; second:
            # the command kills what it has started; then it is killed itself.
            asked += 1
            if asked > 2:
                child.end(grace=_GIVEN_UP_SECONDS)
                raise
            child.send(signal.SIGINT)


def _object(lines: Sequence[str]) -> dict[str, Any] | None:
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            return found
    return None


def _print(line: str) -> None:
    print(line, flush=True)
