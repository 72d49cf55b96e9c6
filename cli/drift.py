"""`howdah drift`: what a model was given, beside what it was trained on."""

from __future__ import annotations

from typing import Annotated

import typer

from howdah.cli.common import (
    MODEL_HELP,
    AsJson,
    ConfigPath,
    IdColumn,
    Overrides,
    TextColumns,
    allowed,
    answer,
    load,
    say,
)
from howdah.errors import UsageError

app = typer.Typer()


@app.command()
def drift(
    model: Annotated[str, typer.Option(help=f"{MODEL_HELP}.")],
    table: Annotated[
        str | None, typer.Option(help="Output table of `howdah score`: db.scored.")
    ] = None,
    partition: Annotated[
        str | None, typer.Option(help="Partition of --table: ds=2026-11-01, or ds=.../hour=3.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            help="File(s) of texts, which are classified, or of predictions by `howdah predict`."
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Partitions on the page; default: 30."),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="True labels by id, to measure accuracy: db.table; for --source a file"),
    ] = None,
    id_column: IdColumn = None,
    text_column: TextColumns = None,
    make_reference: Annotated[
        bool,
        typer.Option(
            "--make-reference",
            help="Build the model's profile from rows of data.dataset or, with --table --partition"
            " [--last], from rows that it has scored.",
        ),
    ] = False,
    output: Annotated[
        str | None,
        typer.Option(help="Directory for drift.html and drift.json (any storage)."),
    ] = None,
    config: ConfigPath = None,
    set: Overrides = None,
    json: AsJson = False,
) -> None:
    """Check a scored partition or a file for drift; exit code 1 if a column has moved."""
    allowed(
        ("--model", "model", model), ("--table", "table", table), ("--source", "rows", source),
        ("--labels", "rows", labels), ("--output", "path", output),
    )  # fmt: skip
    _check(table, partition, source, make_reference, labels, last)
    checked = load(config, set)
    if make_reference:
        if table is not None:
            from howdah.serving.scoring.drift import reference_from_table

            path = reference_from_table(
                checked, model, table, partition, last=last or 1, progress=say
            )
        else:
            from howdah.training.evaluation.profile_writer import make_reference as make

            path = make(checked, model, progress=say)
        answer({"profile": path}, json, [f"profile: {path}"])
        return
    from howdah.serving.scoring import drift as drifting

    if table is not None:
        report = drifting.of_table(
            checked, model, table, partition, last=last, labels=labels,
            label_column=checked.data.columns.label, id_column=id_column or "id", progress=say,
        )  # fmt: skip
    else:
        report = drifting.of_source(
            checked, model, source, text_columns=text_column, labels=labels,
            label_column=checked.data.columns.label, id_column=id_column, progress=say,
        )  # fmt: skip
    paths = {}
    if output is not None:
        from howdah.serving.drift.page import write

        words = drifting.words_of(report.directory)
        paths = write(report, output, words, texts=checked.report.texts)
        say(f"page: {paths['html']}")
    for line in report.rows_without():
        say(line)
    failed = report.error(paths.get("html"))
    if failed is not None:
        raise failed
    summary = {key: value for key, value in report.as_dict().items() if key != "history"}
    answer({**summary, "pages": paths}, json, [*report.lines(), f"drift: {report.verdict.state}"])


def _check(
    table: str | None,
    partition: str | None,
    source: str | None,
    make_reference: bool,
    labels: str | None,
    last: int | None,
) -> None:
    """Refuse options that do not go together."""
    chosen = [table is not None, source is not None, make_reference]
    if sum(chosen) != 1 and chosen != [True, False, True]:
        raise UsageError(
            "howdah drift needs exactly one thing to check",
            expected="--table with --partition, or --source, or --make-reference",
            got=", ".join(
                name
                for name, is_chosen in zip(
                    ("--table", "--source", "--make-reference"), chosen, strict=True
                )
                if is_chosen
            )
            or "none of them",
            remedy="`--source FILE` judges a file of texts, or of predictions by `howdah predict`",
        )
    problems = {
        "--partition and --table require each other": (partition is None) != (table is None),
        "--last requires --table": last is not None and table is None,
        "--labels requires --table or --source": labels is not None and make_reference,
    }
    wrong = [text for text, is_wrong in problems.items() if is_wrong]
    if wrong:
        raise UsageError("; ".join(wrong))
