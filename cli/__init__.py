"""`howdah ...`: the command line.

One of the two composition roots: it imports the rooms of the work, lazily and inside functions, so
that `howdah --help` starts without a framework. Progress goes to stderr; with --json exactly one
JSON object goes to stdout.
"""

from __future__ import annotations

import json as _json
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from howdah import __version__
from howdah.cli import (
    alerting,
    comparing,
    drift,
    groups,
    jobs,
    lineage,
    models,
    serving,
    streams,
    tune,
    work,
)  # fmt: skip
from howdah.cli.common import answered, begin, policies, say, under
from howdah.core.terminal import shown
from howdah.errors import (
    HowdahError,
    Interrupted,
    StorageError,
    Terminated,
    TerminationSignal,
    UsageError,
    render,
)

app = typer.Typer(
    name="howdah",
    cls=groups.Commands,
    help="Train, judge and serve transformers that classify your texts or images, on one machine or"
    " a cluster.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(work.app)
app.add_typer(tune.app)
app.add_typer(models.app)
models.group.add_typer(lineage.app)
app.add_typer(models.group, name="model")
app.add_typer(serving.app)
app.add_typer(comparing.app)
app.add_typer(drift.app)
app.add_typer(jobs.app)


_UNDER_POLICY = {
    "config", "doctor", "drift", "etl", "evaluate", "export", "gate", "guard", "kill",
    "logs", "model lineage", "model published", "model register", "model threshold", "partition",
    "plan", "predict", "ps", "publish", "report", "runs", "scale", "score", "status", "submit",
    "train", "tune",
}  # fmt: skip
"""Commands that apply a policy to their options; under a policy the others are refused."""


_invoked: list[str | None] = [None]
"""The command of this process."""


@app.callback(invoke_without_command=True)
def _top(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    policy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Do only what this policy allows (YAML, any storage); may be given several times.",
        ),
    ] = None,
) -> None:
    if version:
        print(f"howdah {__version__}")
        raise typer.Exit()
    under(policy or [])
    if context.invoked_subcommand != "model":
        _begin(context.invoked_subcommand)


@models.group.callback()
def _model(context: typer.Context) -> None:
    _begin(f"model {context.invoked_subcommand}")


def _begin(command: str | None) -> None:
    """Note the command of this process, if the policies' check of its options exists."""
    if policies() and command not in _UNDER_POLICY:
        raise UsageError(
            f"howdah {command} cannot be run under a policy",
            where="--policy",
            expected=", ".join(sorted(_UNDER_POLICY)),
        )
    _invoked[:] = [command]


def _terminate(signum: int, frame: object) -> None:
    raise TerminationSignal


def run(call: Callable[[], Any], *, as_json: bool = False) -> int:
    """Run a command; a HowdahError becomes one message and its exit code."""
    begin()
    try:
        result = call()
        sys.stdout.flush()  # what cannot be printed is an error of the command
        code = result if isinstance(result, int) else 0
        alerting.ended(_invoked[0], None, code)
        return code
    except KeyboardInterrupt:
        error: HowdahError = Interrupted("interrupted")
    except TerminationSignal:
        error = Terminated("terminated (SIGTERM)")
    except HowdahError as caught:
        error = caught
    except Exception as defect:
        if not _without_directory():
            alerting.ended(_invoked[0], defect, 1)
            raise
        error = UsageError(
            "the working directory was removed", remedy="change to a directory that exists"
        )
    try:
        if as_json and not answered():
            print(shown(_json.dumps(error.as_dict(), ensure_ascii=False)))
        sys.stdout.flush()
    except StorageError as unprinted:  # of two errors the command's own has the exit code
        say(f"howdah: {render(unprinted)}")
    say(f"howdah: {render(error)}")
    alerting.ended(_invoked[0], error, error.exit_code)
    return error.exit_code


def _without_directory() -> bool:
    """Whether another process has removed this one's working directory: no relative path works."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


def main(commands: typer.Typer = app) -> None:
    """Entry point of the `howdah` script, and of a tool with commands of its own."""
    streams.prepare()
    signal.signal(signal.SIGTERM, _terminate)

    def call() -> int:
        try:
            return commands(standalone_mode=False) or 0
        except typer.Abort:
            raise Interrupted("interrupted") from None
        except typer.TyperException as error:
            context = getattr(error, "ctx", None)
            command = context.command_path if context else "howdah"
            text = error.format_message() if hasattr(error, "format_message") else str(error)
            if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
                print(text)
                return 2
            missing_command = re.match(r"No such command '(\S+)'", text)
            missing = getattr(error, "option_name", None) or (
                missing_command and missing_command[1]
            )
            raise UsageError(text.strip(), remedy=groups.remedy(command, missing)) from None

    sys.exit(run(call, as_json="--json" in sys.argv))
