"""Reads an export's howdah.json and config.json, and checks the types of their fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from howdah import storage
from howdah.config.data import CleanOptions, Columns
from howdah.config.tasks import TASKS
from howdah.errors import ModelError
from howdah.models.registry import EXPORT_INFO
from howdah.storage.shapes import ANY_OBJECT, COUNT, FLAG, TEXT, Each, Fields, Items, Kind, one_of

_TASK = one_of(TASKS)


def _are_columns(value: Any) -> bool:
    try:
        Columns(**value)
    except (TypeError, ValidationError):
        return False
    return True


_COLUMNS = Kind("data.columns of a configuration", _are_columns)
_INFO = Fields(
    {
        **dict.fromkeys(
            ("run_id", "run_name", "framework", "weights_sha256", "tokenizer_hash"), TEXT
        ),
        "step": COUNT,
        "max_length": COUNT,
        "task": _TASK,
        "pairs": FLAG,
        "labels": Items(TEXT),
        "clean": Fields(dict.fromkeys(CleanOptions.model_fields, FLAG)),
        "columns": _COLUMNS,
        "dataset": Fields({"path": TEXT, "hash": TEXT}),
        "base": Fields({"source": TEXT}),
        "formats": Each(ANY_OBJECT),
    }
)
"""Shape of howdah.json. `decision` is not listed: models/decision.py checks it."""
_REMEDY = "`howdah export` writes the run's export again; a published version: publish it again"


def read_info(export: str, *, needed: Sequence[str] = ()) -> dict[str, Any]:
    """The howdah.json of an export (any storage).

    Args:
        needed: fields that it must have.
    Raises:
        NotFound: the file does not exist.
        ModelError: it is not a JSON object, or a field has another type.
    """
    shape = Fields(_INFO.of, needed=tuple(needed))
    path = storage.join(export, EXPORT_INFO)
    return storage.read_object(path, shape, kind=ModelError, remedy=_REMEDY)


def read_config(export: str) -> dict[str, Any]:
    """The config.json of an export.

    Raises:
        NotFound: the file does not exist.
        ModelError: it is not a JSON object.
    """
    path = storage.join(export, "config.json")
    return storage.read_object(path, kind=ModelError, remedy=_REMEDY)
