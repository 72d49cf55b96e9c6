"""`howdah config`: write, check and explain configurations and policies."""

from __future__ import annotations

import json as _json
from typing import Annotated

import typer

from howdah.cli.common import (
    AsJson,
    ConfigPath,
    Overrides,
    allowed,
    answer,
    chosen,
    load,
    say,
    typed,
)
from howdah.cli.groups import ConfigCommands

app = typer.Typer(
    cls=ConfigCommands,
    help="Write, check and explain the run configuration.",
    no_args_is_help=True,
)


@app.command("init")
def config_init(
    path: Annotated[str | None, typer.Argument(help="File to write; default: stdout.")] = None,
    source: Annotated[
        str | None, typer.Option(help="Rows (file or directory) to take columns from.")
    ] = None,
) -> None:
    """Write a starting configuration; with --source, one that fits your rows."""
    from howdah import storage

    allowed(("FILE", "path", path), ("--source", "rows", source))
    if source is None:
        from howdah.config import loader as config

        text, notes = config.starter_yaml(), []
    else:
        from howdah.cli.begin import starter

        text, notes = starter.from_source(source)
    if path is None:
        print(text, end="")
    else:
        storage.create_exclusive(path, text.encode())
        say(f"written: {storage.absolute(path)}")
    for note in notes:
        say(note)
    if path is not None:
        first = "" if source is not None else "set data.source in it to your rows, then "
        say(f"next: {first}{typed('etl', path)}")


@app.command("explain")
def config_explain(
    key: Annotated[str | None, typer.Argument(help="A key, its bare name or a section.")] = None,
    json: AsJson = False,
) -> None:
    """Explain a key: meaning, type and default; without one, list all keys by group."""
    from howdah.config import loader as config
    from howdah.config.types import GROUPS

    if key is None:
        groups = config.grouped()
        lines = []
        for group, help_texts in groups.items():
            lines += [f"{group} ({len(help_texts)}): {GROUPS[group]}"]
            lines += [f"    {name}: {text}" for name, text in help_texts.items()]
        return answer({"groups": groups}, json, lines)
    items = config.explain(key)
    lines = []
    for item in items:
        default = "required" if item["required"] else f"default: {_json.dumps(item['default'])}"
        lines += [f"{item['key']}: {item['type']} ({default}; {item['group']})"]
        lines += [f"    {item['help']}"]
    answer({"keys": items}, json, lines)


@app.command("check")
def config_check(config: ConfigPath = None, set: Overrides = None, json: AsJson = False) -> None:
    """Check a configuration and print it whole, defaults included, without its secrets."""
    from howdah import redact
    from howdah.config.loader import dump_yaml

    checked = redact.config(load(chosen(config, set), set))
    answer(checked.model_dump(mode="json"), json, [dump_yaml(checked).rstrip()])


@app.command("policy")
def config_policy(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE]",
            help="A policy (YAML, any storage); default: that of $HOWDAH_AIRFLOW_POLICY, else the"
            " default.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Explain each key of a policy for Airflow's forms, and print the policy that is in force."""
    from howdah.policy import rules as policies

    allowed(("FILE", "path", path))
    in_force, source = policies.in_force(path)
    keys = policies.explain(in_force)
    lines = [f"# {source}"]
    for item in keys:
        lines += [f"# {item['key']}: {item['type']} (default: {_json.dumps(item['default'])})"]
        lines += [f"#     {item['help']}"]
    policy = in_force.model_dump(mode="json")
    answer(
        {"from": source, "policy": policy, "keys": keys}, json,
        [*lines, policies.to_yaml(in_force).rstrip()],
    )  # fmt: skip
