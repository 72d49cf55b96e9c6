"""The commands that say whether a day's rows are there, and which model is published."""

from __future__ import annotations

from typing import Annotated

import typer

from howdah.cli.common import AsJson, ConfigPath, Overrides, allowed, answer, load
from howdah.config.options.partition import is_files

app = typer.Typer()


@app.command()
def partition(
    partition: Annotated[
        list[str], typer.Option(help="column=value, or a=b/c=d; repeatable: all are asked for.")
    ],
    source: Annotated[
        str | None,
        typer.Option(help="Table, or files with {column} for its value; none: data.source."),
    ] = None,
    ready: Annotated[
        str | None,
        typer.Option(help="Ask for this file or directory instead, with {column} for its value."),
    ] = None,
    config: ConfigPath = None,
    set: Overrides = None,
    json: AsJson = False,
) -> None:
    """Say whether partitions of a table, or a day's files, are there. Waits for nothing.

    Exit code 0 in both cases: --json prints {"there", "missing"}.
    """
    # Of files their paths are judged, which the partition completes.
    if source is not None and not is_files(source):
        allowed(("--source", "table", source))
    checked = load(config, set)
    from howdah.spark import days

    wanted = days.search(checked, partition, source=source, ready=ready)
    option = "--ready" if ready else "--source"
    allowed(*((option, "path", path) for path in wanted.paths.values()))
    missing = wanted.missing()
    asked = {"source": wanted.name, "partitions": partition}
    lines = [f"{name}: {'missing' if name in missing else 'there'}" for name in partition]
    answer({**asked, "there": not missing, "missing": missing}, json, lines)


@app.command()
def published(config: ConfigPath = None, set: Overrides = None, json: AsJson = False) -> None:
    """Show the configuration's published model: versions, which is current, since when, by whom."""
    checked = load(config, set)
    from howdah.models.registry import Published

    model = Published(checked.model_directory)
    _, now = model.newest()
    versions = model.versions()
    kept = ("published", "by", "note", "action", "run_id", "run_directory", "metrics", "dataset")
    current = now and {"version": now["version"], "path": model.path_of(now["version"]),
                       **{key: now.get(key) for key in kept}}  # fmt: skip
    found = {"model": model.root, "versions": versions, "current": current}
    lines = [f"{model.root}: {len(versions)} versions" if versions else f"{model.root}: none"]
    if current is not None:
        lines += [f"current: v={current['version']}, {current['published']}, {current['by']}"]
    answer(found, json, lines)
