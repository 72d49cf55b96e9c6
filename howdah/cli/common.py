"""What every command shares: its usual options, how it tells, how it loads a configuration."""

from __future__ import annotations

import json as _json
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

ConfigPath = Annotated[
    str | None,
    typer.Option("--config", "-c", help="Run configuration (YAML, any storage); -: stdin."),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", help="section.key=value; may be given several times.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


def say(line: str) -> None:
    """Tell people something; stdout is left to results."""
    print(line, file=sys.stderr, flush=True)


def answer(value: dict[str, Any], as_json: bool, lines: Sequence[str]) -> None:
    """The command's result: one JSON object, or lines for people."""
    if as_json:
        print(_json.dumps(value, ensure_ascii=False))
    else:
        for line in lines:
            print(line)


def load(path: str | None, overrides: list[str] | None):
    """The checked configuration; storage does as its `run` section says from here on."""
    from howdah import config, storage

    checked = config.load(path, overrides or [])
    storage.configure(retry_seconds=checked.run.storage_retry_seconds, user=checked.run.user)
    return checked
