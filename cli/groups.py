"""What `howdah --help` shows: the commands in groups, in order, each with one example.

Also what is suggested for an option or a command that does not exist: the key that `--set` takes,
or the command's name.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

from howdah.errors import Interrupted


class Command(NamedTuple):
    """A command in the help of all of them."""

    panel: str
    example: str


_MAKE = "Make a model"
_JUDGE = "Judge it"
_USE = "Use it"
_JOBS = "Running jobs"
_MACHINE = "This machine"

COMMANDS = {
    "etl": Command(_MAKE, "howdah etl --config run.yaml"),
    "plan": Command(_MAKE, "howdah plan --config run.yaml --np 8"),
    "train": Command(_MAKE, "howdah train --config run.yaml --np 2"),
    "tune": Command(_MAKE, "howdah tune --config run.yaml --np 2"),
    "export": Command(_MAKE, "howdah export --config run.yaml --set export.formats=[hf,onnx]"),
    "evaluate": Command(_JUDGE, "howdah evaluate --config run.yaml --split test"),
    "gate": Command(_JUDGE, "howdah gate --config run.yaml --set gate.minimum.accuracy=0.9"),
    "report": Command(_JUDGE, "howdah report runs/news runs/news-large"),
    "runs": Command(_JUDGE, "howdah runs runs --sort metric"),
    "drift": Command(_JUDGE, "howdah drift --model news --source new.parquet --output pages"),
    "publish": Command(_USE, "howdah publish --config run.yaml --note 'approved by Anna'"),
    "predict": Command(_USE, "howdah predict --model news@3 --source new.csv --output out.parquet"),
    "score": Command(
        _USE, "howdah score --model news --source db.texts --output db.scored --since ds=2026-11-01"
    ),
    "serve": Command(_USE, "howdah serve --model news --port 8000"),
    "model": Command(_USE, "howdah model published --config run.yaml"),
    "submit": Command(_JOBS, "howdah submit --config run.yaml --on yarn --wait"),
    "status": Command(_JOBS, "howdah status runs/news"),
    "logs": Command(_JOBS, "howdah logs runs/news --rank 0 --follow"),
    "kill": Command(_JOBS, "howdah kill runs/news --save"),
    "scale": Command(_JOBS, "howdah scale runs/news 8"),
    "ps": Command(_JOBS, "howdah ps --all"),
    "doctor": Command(_MACHINE, "howdah doctor --launcher torchrun"),
    "config": Command(_MACHINE, "howdah config init run.yaml"),
    "package": Command(_MACHINE, "howdah package --kind etl --output hdfs:///apps/howdah"),
}
"""The visible commands, in the order of the help. One that is not here is hidden."""

EXAMPLES_OF_MODEL = {
    "published": "howdah model published --config run.yaml",
    "threshold": "howdah model threshold --model runs/news --accuracy 0.95",
    "register": "howdah model register --config run.yaml --alias champion",
    "lineage": "howdah model lineage --model news@3 --config run.yaml",
    "forget": "howdah model forget --ids ids.txt --dataset data/news --apply",
}
"""The commands of `howdah model`, in the order of its help."""

EXAMPLES_OF_CONFIG = {
    "init": "howdah config init run.yaml --source rows.csv",
    "explain": "howdah config explain training.learning_rate",
    "check": "howdah config check --config run.yaml --set training.max_steps=100",
    "policy": "howdah config policy policy.yaml",
}
"""The commands of `howdah config`, in the order of its help."""


class Commands(TyperGroup):
    """The commands of `howdah`, in the groups of its help."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        for name, one in COMMANDS.items():
            self.commands[name].rich_help_panel = one.panel
            _with_example(self.commands[name], one.example)
        for name in self.commands.keys() - COMMANDS:
            self.commands[name].hidden = True
        _say_what_to_write(self)

    def invoke(self, ctx: typer.Context) -> Any:
        """Run the command. Typer would end it without a word at a Ctrl-C."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted("interrupted") from None

    def list_commands(self, ctx: typer.Context) -> list[str]:
        """The names in the order of the help."""
        return [*COMMANDS, *sorted(self.commands.keys() - COMMANDS)]

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:
        """Write the commands, group by group. It is plain text: rich, which would draw boxes, takes
        as long to import as all the rest."""
        for panel in dict.fromkeys(one.panel for one in COMMANDS.values()):
            names = [name for name, one in COMMANDS.items() if one.panel == panel]
            with formatter.section(panel):
                formatter.write_dl(_sentences(self, names))


class _Below(TyperGroup):
    """The commands below one of `howdah`."""

    examples: Mapping[str, str]
    """{command: its example}, in the order of the help."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        for name, example in self.examples.items():
            _with_example(self.commands[name], example)

    def list_commands(self, ctx: typer.Context) -> list[str]:
        """The names in the order of the help."""
        return list(self.examples)

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:
        """Write the commands, each with its whole sentence."""
        with formatter.section("Commands"):
            formatter.write_dl(_sentences(self, self.list_commands(ctx)))


class ModelCommands(_Below):
    """The commands of `howdah model`."""

    examples = EXAMPLES_OF_MODEL


class ConfigCommands(_Below):
    """The commands of `howdah config`."""

    examples = EXAMPLES_OF_CONFIG


def _sentences(group: TyperGroup, names: Iterable[str]) -> list[tuple[str, str]]:
    """Commands with the first sentences of their help, in columns as wide in every group."""
    width = max(map(len, COMMANDS))
    return [
        (name.ljust(width), (group.commands[name].help or "").partition("\n\n")[0])
        for name in names
    ]


def _with_example(command: Any, example: str) -> None:
    """Let a command's help begin with its sentence and the example."""
    sentence, _, more = (command.help or "").partition("\n\n")
    command.help = "\n\n".join(filter(None, (sentence, f"Example: {example}", more)))


_NAMES = {"config": "FILE", "set": "KEY=VALUE", "partition": "COLUMN=VALUE", "seconds": "SECONDS"}
"""What the help writes for the value of an option of this name, or whose name's last word it is."""


def _say_what_to_write(command: Any) -> None:
    """Let the help of a command, and of those below it, show what a person writes: FILE, N, and
    [JOB] for an argument that may be left out, in place of the types in Python."""
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = parameter.metavar or parameter.name.upper()
            parameter.metavar = name if " " in name else name.removesuffix("...").strip("[]")
            parameter.get_help_record = functools.partial(_of_argument, parameter)
        elif parameter.metavar is None and not parameter.is_flag:
            word = parameter.name.rpartition("_")[2]
            number = parameter.type_descriptor.annotation in (int, float)
            name = _NAMES.get(parameter.name) or _NAMES.get(word)
            parameter.metavar = name or ("N" if number else word.upper())
    command.collect_usage_pieces = functools.partial(_usage, command)
    for below in getattr(command, "commands", {}).values():
        _say_what_to_write(below)


def _of_argument(argument: Any, ctx: typer.Context) -> tuple[str, str]:
    return argument.metavar, argument.help or ""


def _usage(command: Any, ctx: typer.Context) -> list[str]:
    """The words of a command's usage: "[OPTIONS] RUN...", "[OPTIONS] [JOB]"."""
    words = ["[OPTIONS]"]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = parameter.metavar
            if parameter.nargs != 1 and " " not in name:
                name += "..."
            words.append(name if parameter.required else f"[{name}]")
    return words + (["COMMAND"] if hasattr(command, "commands") else [])


# ------------------------------------------------------------------------------- suggestions
_KEYS = {
    "--append": "data.append.enabled=true",
    "--deploy-mode": "data.spark.deploy_mode=",
    "--format": "export.formats=",
    "--label-column": "data.columns.label=",
    "--master": "data.spark.master=",
    "--max-texts": "serve.max_texts=",
    "--on": "tune.on=",
    "--open": "serve.open=true",
    "--resume": "checkpoint.resume=",
    "--source": "data.source=",
    "--threads": "serve.threads=",
    "--token-file": "serve.token_file=",
    "--uri": "tracking.mlflow.uri=",
}
"""Keys by the option that a command does not have, because `--set` does the same."""

_SPELLINGS = {
    "baseline": "howdah evaluate --baseline",
    "--despite-forgotten": "--anyway",
    "--gate": "howdah gate",
    "--yarn": "--on yarn",
    "crossval": "howdah train --folds 5",
    **{name: f"howdah model {name}" for name in EXAMPLES_OF_MODEL},
}


def remedy(command: str, missing: str | None) -> str:
    """What to do about a command line that is not understood.

    Args:
        command: the command as it was typed, "howdah train".
        missing: the option or command that does not exist; None: something else is wrong.
    """
    if missing in _KEYS:
        return f"--set {_KEYS[missing]} does it; `{command} --help` shows the options"
    if missing in _SPELLINGS:
        return f"it is `{_SPELLINGS[missing]}`"
    return f"`{command} --help` shows what it takes"
