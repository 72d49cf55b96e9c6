"""`howdah ...`: the command line.

One of the two composition roots: it imports the rooms of the work, lazily and inside functions, so
that `howdah --help` starts without a framework. Progress goes to stderr; with --json exactly one
JSON object goes to stdout.
"""

from __future__ import annotations

import json as _json
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from howdah import __version__
from howdah.cli import (
    alerting,
    comparing,
    days,
    drift,
    jobs,
    lineage,
    models,
    serving,
    streams,
    tune,
    work,
)  # fmt: skip
from howdah.cli.common import say, under
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
    help="From text rows or a Hive table to a trained DistilBERT classifier.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(work.app)
app.add_typer(tune.app)
app.add_typer(models.app)
app.add_typer(serving.app)
app.add_typer(lineage.app)
app.add_typer(days.app)
app.add_typer(comparing.app)
app.add_typer(drift.app)
app.add_typer(jobs.app)


_UNDER_POLICY = {
    "baseline", "config", "crossval", "doctor", "drift", "etl", "evaluate", "export", "gate",
    "guard", "kill", "lineage", "logs", "partition", "plan", "predict", "ps", "publish",
    "published", "register", "report", "scale", "score", "status", "submit", "threshold", "train",
    "tune",
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
    if policy and context.invoked_subcommand not in _UNDER_POLICY:
        raise UsageError(
            f"howdah {context.invoked_subcommand} cannot be run under a policy",
            where="--policy",
            expected=", ".join(sorted(_UNDER_POLICY)),
        )
    under(policy or [])
    _invoked[:] = [context.invoked_subcommand]


def _terminate(signum: int, frame: object) -> None:
    raise TerminationSignal


def run(call: Callable[[], Any], *, as_json: bool = False) -> int:
    """Run a command; a HowdahError becomes one message and its exit code."""
    try:
        result = call()
        sys.stdout.flush()  # what cannot be printed is an error of the command
        code = result if isinstance(result, int) else 0
        alerting.ended(_invoked[0], None, code)
        return code
    except KeyboardInterrupt:
        error: HowdahError = Interrupted("interrupted")
    except TerminationSignal:
        error = Terminated("asked to end (SIGTERM)")
    except HowdahError as caught:
        error = caught
    except Exception as defect:
        alerting.ended(_invoked[0], defect, 1)
        raise
    try:
        if as_json:
            print(shown(_json.dumps(error.as_dict(), ensure_ascii=False)))
        sys.stdout.flush()
    except StorageError as unprinted:  # of two errors the command's own has the exit code
        say(f"howdah: {render(unprinted)}")
    say(f"howdah: {render(error)}")
    alerting.ended(_invoked[0], error, error.exit_code)
    return error.exit_code


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
            if type(error).__name__ == "NoArgsIsHelpError":  # the help is on stdout by now
                return 2
            text = error.format_message() if hasattr(error, "format_message") else str(error)
            raise UsageError(
                text.strip(), remedy=f"`{command} --help` shows what it takes"
            ) from None

    sys.exit(run(call, as_json="--json" in sys.argv))
