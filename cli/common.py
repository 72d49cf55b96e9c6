"""Shared by all commands: common options, output, and loading a configuration under policies."""

from __future__ import annotations

import contextlib
import json as _json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from howdah import redact
from howdah.cli import streams
from howdah.core.terminal import shown

if TYPE_CHECKING:
    from howdah.config.data import SparkOptions
    from howdah.config.model import Config
    from howdah.config.yarn import YarnSection
    from howdah.errors import HowdahError
    from howdah.policy.check import Judge

ConfigPath = Annotated[
    str | None,
    typer.Option("--config", "-c", help="Run configuration (YAML, any storage); -: stdin."),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value; may be given several times.")
]
MODEL_HELP = (
    "Published model (NAME or NAME@3 below publish.directory), or the path of a published model,"
    " export or run directory (any storage)"
)
"""The same for each command: models/version.py."""
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
RunWith = Annotated[
    str | None,
    typer.Option(
        "--framework",
        help="What runs the model: torch, tensorflow, or onnx (onnxruntime; onnx-w8 and onnx-int8"
        " if the export has them); default: onnx if the export has it, else what it was trained"
        " with.",
    ),
]


Ranks = Annotated[int, typer.Option("--np", min=1, help="Ranks on this machine.")]
Folds = Annotated[
    int | None,
    typer.Option(
        min=2, help="Cross-validate: run once for each of this number of folds of the source."
    ),
]
TextColumns = Annotated[
    list[str] | None,
    typer.Option(
        "--text-column",
        help="Column of the text or image; repeatable; default: as in the model's training.",
    ),
]
IdColumn = Annotated[
    str | None, typer.Option("--id-column", help="Column of the row ids; default: as in training.")
]


_USUAL = "run.yaml"
_ANSWERED: list[dict[str, Any]] = []
"""The results that this command has printed."""
_LOADED: list[Config] = []
"""The configuration that this command has loaded last."""
_POLICIES: list[str] = []
_JUDGES: list[Judge] = []
"""The policies of `howdah --policy`: a command runs only if all of them allow it."""


def say(line: str) -> None:
    """Print a line for the user on stderr, masked and escaped; stdout is only for results.

    Where the process that reads stderr has ended, or its terminal is gone, this line and all later
    ones are dropped: the command still ends its job, which it says first.
    """
    _print(redact.text(line), sys.stderr)


def answer(value: dict[str, Any], as_json: bool, lines: Sequence[str]) -> None:
    """Print the command's result: one JSON object, or lines of text."""
    _ANSWERED.append(value)
    for line in [_json.dumps(value, ensure_ascii=False)] if as_json else lines:
        _print(line, sys.stdout)


def answered() -> bool:
    """True if this command has printed its result: an error after it is not a second one."""
    return bool(_ANSWERED)


def begin() -> None:
    """Begin a command, in a process that may have run others."""
    _ANSWERED.clear()


def _print(line: str, stream: TextIO) -> None:
    """Print a line, escaped; where nothing reads the stream any more, drop it and what follows."""
    try:
        with streams.above():
            print(shown(line), file=stream, flush=True)
    except OSError as error:
        if not streams.read_by_none(error, stream.fileno()):
            raise
        streams.discard(stream.fileno())


def under(paths: Sequence[str]) -> None:
    """Apply the policies in these files to everything that this process does.

    Raises:
        ConfigError, NotFound: a file is not a policy, or does not exist.
    """
    _POLICIES[:], _JUDGES[:] = paths, []
    if paths:
        from howdah.policy import rules as policy
        from howdah.policy.check import Judge

        _JUDGES[:] = [Judge(policy.load(path), path) for path in paths]


def loaded() -> Config | None:
    """The configuration that this command has loaded; None: none yet."""
    return _LOADED[-1] if _LOADED else None


def policies() -> list[str]:
    """The files of `howdah --policy`."""
    return list(_POLICIES)


def allowed(*options: tuple[str, str, str | None]) -> None:
    """Refuse options of a command that the policies do not allow.

    Args:
        options: (option, kind of its value, value) each; the kind is a config.types.Kind, "rows" or
            "output". None as value is allowed.
    Raises:
        ConfigError: with every option that is refused.
    """
    for judge in _JUDGES:
        judge.refuse(
            problem
            for option, kind, value in options
            if value is not None
            for problem in judge.value(option, kind, value)
        )


def refused(config: Config) -> Iterator[HowdahError]:
    """Problems that the policies have with a configuration that a command has made."""
    for judge in _JUDGES:
        yield from judge.config(config)


def chosen(path: str | None, overrides: list[str] | None) -> str | None:
    """The configuration of a command that begins or judges a run: ./run.yaml where none is named.

    Raises:
        UsageError: no key of a run is given at all; by defaults alone it would be some other run.
    """
    from howdah.errors import UsageError

    path = usual(path)
    if path is not None or overrides:
        return path
    raise UsageError(
        f"no --config, and this directory has no {_USUAL}",
        where=os.getcwd(),
        remedy=f"give --config FILE, or run `howdah config init {_USUAL} --source ROWS`: it writes"
        " one to fit your CSV, JSON lines or Parquet file",
    )


def usual(path: str | None) -> str | None:
    """The configuration that is named, else ./run.yaml, with a line that says so; None: neither."""
    if path is None and os.path.isfile(_USUAL):
        say(f"no --config: {os.path.abspath(_USUAL)} is used")
        return _USUAL
    return path


def load(path: str | None, overrides: list[str] | None) -> Config:
    """The checked configuration, if the policies allow it; its `run` section configures storage."""
    from howdah import storage
    from howdah.config import loader

    path = usual(path)
    allowed(("--config", "path", None if path == "-" else path))
    checked = loader.load(path, overrides or [])
    for judge in _JUDGES:
        judge.refuse(judge.config(checked))
    storage.configure(
        retry_seconds=checked.run.storage_retry_seconds, user=checked.run.user,
        mode=checked.most_open,
    )  # fmt: skip
    _LOADED[:] = [checked]
    return checked


def typed(
    command: str, path: str | None = None, overrides: Sequence[str] | None = None, *more: str
) -> str:
    """A command with the configuration of this one, as a user types it.

    Args:
        more: further arguments.
    """
    words = [] if path is None else ["--config", path]
    words += [word for one in overrides or () for word in ("--set", one)]
    shown = (redact.text(shlex.quote(word)) for word in (*words, *more))
    return " ".join([f"howdah {command}", *shown])


def note_command() -> None:
    """Let run.json say which command began the run: the ranks are processes of other commands."""
    from howdah.models.runs.command import VARIABLE, shown_command

    os.environ[VARIABLE] = shown_command(sys.argv)


def cross_validate(
    checked: Config,
    folds: int,
    as_json: bool,
    *,
    np: int = 1,
    baseline: bool = False,
) -> None:
    """Train and evaluate, or measure the baseline, once for each fold; print mean and deviation."""
    from howdah import storage
    from howdah.tuning.crossval.folds import cross_validate as run
    from howdah.tuning.crossval.summary import table

    summary = run(checked, folds=folds, np=np, baseline=baseline, progress=say)
    path = storage.absolute(summary["path"])
    following = [] if baseline else ["next: `howdah train` without --folds trains on all rows"]
    answer(summary, as_json, [*table(summary), f"cross-validation: {path}", *following])


def login(section: YarnSection | SparkOptions | None) -> AbstractContextManager[None]:
    """Inside, commands have the ticket of this section's keytab, if there is one."""
    from howdah.hadoop.kerberos import logged_in

    return contextlib.nullcontext() if section is None else logged_in(*section.login)


def pinned(
    checked: Config,
    section: Callable[[Config], YarnSection | SparkOptions | None] = lambda config: None,
) -> Config:
    """The configuration of a new run: with one version in place of a published model, and lines
    that say which.

    Args:
        section: whose keytab the command logs in with, by its configuration (None: with none): the
            model may lie on a cluster with Kerberos.
    """
    from howdah.models.base import with_pinned_base

    with login(section(checked)):
        with_version = with_pinned_base(checked)
    for key in ("base", "init_from"):
        written, address = getattr(checked.model, key), getattr(with_version.model, key)
        if written != address:
            say(f"model.{key} {written}: {address}")
    return with_version
