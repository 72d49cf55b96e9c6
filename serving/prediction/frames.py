"""The ids and texts of a Spark DataFrame's rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from howdah.config.data import Columns
from howdah.data.clean import PAIR
from howdah.data.files.checks import no_column
from howdah.data.spark import columnar, ids
from howdah.errors import DataError
from howdah.serving.prediction.reading import OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


def names_of(
    info: Mapping[str, Any],
    available: Sequence[str],
    *,
    source: str,
    text_columns: Sequence[str] | None,
    id_column: str | None,
) -> tuple[Columns, str | None]:
    """Return the columns of the text (`text`, `text_pair`, `separator`), and that of the id.

    Args:
        info: howdah.json of the model, whose columns are the defaults.
        available: columns of the source.
        source: named in messages.
    Returns:
        The id is None if the source lacks the model's own id column.
    Raises:
        DataError: the source lacks a column.
    """
    trained = Columns(**(info.get("columns") or {}))
    columns = trained.model_copy(update={"text": list(text_columns or trained.text)})
    key = id_column or (trained.id if trained.id and _has(available, trained.id) else None)
    for name in (*columns.text, *(columns.text_pair or ()), *([key] if key else [])):
        if not _has(available, name):
            raise no_column(name, available, where=source, remedy=OPTIONS)
    return columns, key


def _has(available: Sequence[str], name: str) -> bool:
    """Return whether the column exists, or one that may be the struct of a field `a.b`."""
    return name in available or ("." in name and name.partition(".")[0] in available)


def _column(rows: DataFrame, name: str, source: str) -> tuple[Column, DataType]:
    column = columnar.find(rows, name)
    if column is None:
        raise no_column(name, rows.columns, where=source, remedy=OPTIONS)
    return column


def id_and_text(
    rows: DataFrame,
    info: Mapping[str, Any],
    *,
    source: str,
    text_columns: Sequence[str] | None,
    id_column: str | None,
) -> DataFrame:
    """Select (id, text) of the rows; text is null if all of its columns are null, or one side is.

    The arguments are those of `names_of`. Without an id column Spark numbers the rows.
    """
    from pyspark.sql import functions as F

    columns, key = names_of(
        info, rows.columns, source=source, text_columns=text_columns, id_column=id_column
    )
    row_id = _id(rows, key, source) if key else F.monotonically_increasing_id()

    def joined(names: Sequence[str]) -> Column:
        parts = [_column(rows, name, source)[0].cast("string") for name in names]
        return F.when(F.coalesce(*parts).isNotNull(), F.concat_ws(columns.separator, *parts))

    whole = joined(columns.text)
    if columns.text_pair:
        sides = [
            F.translate(joined(names), PAIR, " ") for names in (columns.text, columns.text_pair)
        ]
        whole = F.concat(sides[0], F.lit(PAIR), sides[1])
    return rows.select(row_id.cast("string").alias("id"), whole.alias("text"))


def _id(rows: DataFrame, name: str, source: str) -> Column:
    """Return the ids, spelt as the ETL spells them.

    Labels are joined by id, and `howdah model forget` looks scored rows up by it.

    Raises:
        DataError: the column's type cannot be an id.
    """
    column, kind = _column(rows, name, source)
    spelt = ids.column(column, kind)
    if spelt is None:
        raise DataError(
            "the id column is not of texts, numbers, dates or times",
            where=f"{name} in {source}",
            got=kind.simpleString(),
            remedy="name another column by --id-column",
        )
    return spelt
