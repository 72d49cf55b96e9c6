"""What a Spark DataFrame's rows are to a model: their id and their text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from howdah.config.data import Columns
from howdah.data.clean import PAIR
from howdah.errors import DataError
from howdah.spark import ids

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["id_and_text", "names_of"]


def names_of(
    info: Mapping[str, Any],
    there: Sequence[str],
    *,
    source: str,
    text_columns: Sequence[str] | None,
    id_column: str | None,
) -> tuple[Columns, str | None]:
    """The columns of the text (`text`, `text_pair`, `separator`), and that of the id.

    Args:
        info: howdah.json of the model, whose columns are used where none are given.
        there: columns of the source.
        source: for messages.
    Returns:
        The id is None where the model's own id column is not there.
    Raises:
        DataError: the source lacks a column.
    """
    trained = Columns(**(info.get("columns") or {}))
    columns = trained.model_copy(update={"text": list(text_columns or trained.text)})
    key = id_column or (trained.id if trained.id in there else None)
    wanted = (*columns.text, *(columns.text_pair or ()), *([key] if key else []))
    missing = [name for name in wanted if name not in there]
    if missing:
        raise DataError(
            f"the source has no column {missing[0]!r}",
            where=source,
            got=f"columns {', '.join(there)}",
            remedy="--text-column and --id-column name them",
        )
    return columns, key


def id_and_text(
    rows: DataFrame,
    info: Mapping[str, Any],
    *,
    source: str,
    text_columns: Sequence[str] | None,
    id_column: str | None,
) -> DataFrame:
    """(id, text) of the rows; text is null where all of its columns are null, or one side is.

    The arguments are those of `names_of`. Without an id column Spark numbers the rows.
    """
    from pyspark.sql import functions as F

    columns, key = names_of(
        info, rows.columns, source=source, text_columns=text_columns, id_column=id_column
    )
    row_id = _id(rows, key, source) if key else F.monotonically_increasing_id()

    def joined(names: Sequence[str]) -> Column:
        parts = [F.col(f"`{name}`").cast("string") for name in names]
        return F.when(F.coalesce(*parts).isNotNull(), F.concat_ws(columns.separator, *parts))

    whole = joined(columns.text)
    if columns.text_pair:
        sides = [
            F.translate(joined(names), PAIR, " ") for names in (columns.text, columns.text_pair)
        ]
        whole = F.concat(sides[0], F.lit(PAIR), sides[1])
    return rows.select(row_id.cast("string").alias("id"), whole.alias("text"))


def _id(rows: DataFrame, name: str, source: str) -> Column:
    """The ids, spelt as the ETL spells them: labels are joined by id, and `howdah forget` finds
    scored rows by it.

    Raises:
        DataError: the column is of a type that no id has.
    """
    kind = rows.schema[name].dataType
    spelt = ids.column(rows[f"`{name}`"], kind)
    if spelt is None:
        raise DataError(
            "the column of ids is of another type",
            where=f"{name} in {source}",
            expected="texts, numbers, dates or times",
            got=kind.simpleString(),
            remedy="name another column by --id-column",
        )
    return spelt
