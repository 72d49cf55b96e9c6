"""`howdah model lineage`: what came of what; `howdah model forget`: rows that are to be removed."""

from __future__ import annotations

from typing import Annotated

import typer

from howdah import storage
from howdah.cli.common import AsJson, ConfigPath, Overrides, allowed, answer, load, say, usual
from howdah.errors import UsageError

app = typer.Typer()


@app.command()
def lineage(
    row: Annotated[
        str | None, typer.Argument(metavar="[ID]", help="Id of the row to look up.")
    ] = None,
    dataset: Annotated[
        list[str] | None,
        typer.Option(help="Dataset (data.dataset) or one of its versions; repeatable with ID."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Published model (NAME or NAME@3), or the path of one.")
    ] = None,
    runs: Annotated[
        list[str] | None, typer.Option(help="A directory with run directories below; repeatable.")
    ] = None,
    models: Annotated[
        list[str] | None, typer.Option(help="publish.directory, or a model in it; repeatable.")
    ] = None,
    config: ConfigPath = None,
    set: Overrides = None,
    json: AsJson = False,
) -> None:
    """Show which datasets, runs, models and scored tables come from a row, a dataset or a model.

    Options default to --config: data.dataset, publish.directory, the parent of run.directory.
    """
    subjects = [("ID", row), ("--dataset", None if row else dataset), ("--model", model)]
    named = [name for name, value in subjects if value is not None]
    if len(named) > 1 or not (named or config):
        raise UsageError(
            "give exactly one of ID, --dataset and --model",
            expected="ID, --dataset or --model",
            got=", ".join(named) or "none of them",
        )
    for option, paths in (("--dataset", dataset), ("--runs", runs), ("--models", models)):
        allowed(*((option, "path", path) for path in paths or []))
    allowed(("--model", "model", model))
    _require_directories("--runs", runs)
    _require_directories("--models", models)
    datasets, runs, models = list(dataset or []), list(runs or []), list(models or [])
    checked = None
    config = usual(config) if row is not None and not datasets else config
    if config is not None or set:
        checked = load(config, set)
        runs = runs or [storage.parent(checked.run.directory)]
        models = models or [checked.publish.directory]
        if model is None:
            datasets = datasets or [_root(checked.data.dataset)]
    if row is not None and not datasets:
        raise UsageError("name the datasets to look in", expected="--dataset, or --config")
    from howdah.config.options.publish import PublishSection
    from howdah.models.version import open_version
    from howdah.serving.registry import lineage as lines

    if model is not None:
        below = checked.publish.directory if checked is not None else PublishSection().directory
        version = open_version(model, below)
    places = lines.Places(datasets=datasets, runs=runs, models=models)
    if row is not None:
        result = lines.of_row(row, places)
    elif model is not None:
        result = lines.of_model(version, places)
    else:
        result = lines.of_dataset(datasets[0], places)
    not_asked = [f"--{key}" for key, paths in (("runs", runs), ("models", models)) if not paths]
    more = [f"not searched, because not given: {' and '.join(not_asked)}"] if not_asked else []
    answer(result, json, [*lines.text(result), *more])


def _require_directories(option: str, paths: list[str] | None) -> None:
    """Refuse a place that does not exist: nothing is found there, which would look like an answer.

    Those of a configuration need not exist yet.
    """
    missing = [path for path in paths or [] if not storage.is_dir(path)]
    if missing:
        raise UsageError(
            "there is no such directory",
            where=option,
            got=", ".join(storage.absolute(path) for path in missing),
            remedy="correct the path, or leave it out with --config, which gives it",
        )


def _root(dataset: str) -> str:
    """data.dataset may be a version of it."""
    from howdah.data.manifest import version_hash

    return dataset if version_hash(dataset) is None else storage.parent(dataset)


@app.command()
def forget(
    ids: Annotated[str, typer.Option(help="File (any storage) with one row id per line.")],
    dataset: Annotated[
        list[str] | None, typer.Option(help="Root of a dataset (data.dataset); repeatable.")
    ] = None,
    runs: Annotated[
        list[str] | None, typer.Option(help="A run directory, or one of many; repeatable.")
    ] = None,
    models: Annotated[
        list[str] | None, typer.Option(help="publish.directory, or a model in it; repeatable.")
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option(help="File or directory of predictions and the like; repeatable."),
    ] = None,
    id_column: Annotated[
        list[str] | None,
        typer.Option(
            help="Id column of Parquet files, besides `id` and the datasets' own; repeatable."
        ),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Make the changes; default: only list them.")
    ] = False,
    json: AsJson = False,
) -> int:
    """Remove rows from datasets, rejects, predictions and reports; list models trained on them.

    Files of other formats are listed, not read: exit code 1 says that a person must look at them.
    """
    if not (dataset or runs or models or files):
        raise UsageError("give at least one of --dataset, --runs, --models, --files")
    from howdah.config.model import RunSection
    from howdah.etl.history import forget as forgetting

    storage.configure(mode=int(RunSection().mode, 8))  # there is no configuration that says it
    row_ids = forgetting.read_ids(ids)
    places = {
        "datasets": dataset or [], "runs": runs or [], "models": models or [], "files": files or []
    }  # fmt: skip
    survey = forgetting.survey(row_ids, **places, id_columns=id_column or [])
    changed, did = [], "nothing is changed without --apply"
    if apply:
        changed = forgetting.apply(row_ids, survey, datasets=places["datasets"], progress=say)
        left = forgetting.survey(row_ids, **places, id_columns=id_column or [])
        forgetting.refuse_left(left)
        survey.listed = left.listed  # a version's directory may have gone with files in it
        did = "removed; none is left in the files that Howdah reads"
    if survey.listed:
        did += f"; {len(survey.listed):,} listed files were not read: check them by hand"
    answer(
        {"ids": len(row_ids), "applied": apply, **survey.as_dict(), "changed": changed},
        json,
        [
            *forgetting.found_lines(survey),
            f"{len(row_ids):,} ids in {len(survey.files):,} files: {did}",
        ],
    )
    return 0 if survey.all_read else 1
