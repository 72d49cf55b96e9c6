"""Reads a run's run.json for gate, report, publish and others, and checks the types of its fields.

A user may have edited the file, or another program may have written it.
"""

from __future__ import annotations

from typing import Any

from howdah import storage
from howdah.config.metric_table import METRICS
from howdah.config.tasks import TASKS
from howdah.errors import DataError
from howdah.run_files import RUN_JSON
from howdah.storage.shapes import (
    ANY_OBJECT,
    COUNT,
    NUMBER,
    TEXT,
    Each,
    Fault,
    Fields,
    Items,
    Kind,
    Shape,
    one_of,
)

_TASK = one_of(TASKS)
_CONFUSED = Kind(
    "[label, predicted, rows]",
    lambda value: (
        isinstance(value, list)
        and [type(one) for one in value] == [str, str, int]
        and value[2] >= 0
    ),
)


def _is_bin(value: Any) -> bool:
    """True for a bin of the calibration; one without rows has no confidence and no accuracy."""
    rows = value.get("rows") if isinstance(value, dict) else None
    if rows is None or not COUNT.fits(rows):
        return False
    numbers = ("lower", "upper", *(("confidence", "accuracy") if rows else ()))
    return all(NUMBER.fits(value.get(name)) for name in numbers)


_BIN = Kind("a bin with lower, upper, rows, confidence and accuracy", _is_bin)
_MOMENTS = Fields({"mean": NUMBER, "deviation": NUMBER}, needed=("mean", "deviation"))
_CLASS = Fields(
    {
        **dict.fromkeys(("precision", "recall", "f1", "roc_auc", "average_precision"), NUMBER),
        "support": COUNT,
    },
    needed=("precision", "recall", "f1", "support"),
)
METRICS_SHAPE = Each(
    Fields(
        {
            **dict.fromkeys(METRICS, NUMBER),
            "rows": COUNT,
            "task": _TASK,
            "labels": Items(TEXT),
            "per_class": Each(_CLASS),
            "confusion_matrix": Items(Items(COUNT)),
            "confused": Items(_CONFUSED),
            "reliability": Items(_BIN),
            "targets": _MOMENTS,
            "predictions": _MOMENTS,
        }
    )
)
"""{split: the metrics that training/evaluation measures}."""
_HOURS = dict.fromkeys(("wall", "cpu", "gpu", "vcore", "gib"), NUMBER)
_ATTEMPT = Fields(
    {
        **dict.fromkeys(("dataset", "submission", "started"), TEXT),
        "seconds": NUMBER,
        "world_size": COUNT,
        "usage": Fields({"cpu_seconds": NUMBER, "gpus": NUMBER}),
    }
)
_ACCOUNT: dict[str, Shape] = {
    "attempts": Items(_ATTEMPT),
    "hours": Fields({**_HOURS, "applications": Each(Fields(_HOURS))}),
}
KEPT_SHAPE = Fields(_ACCOUNT)
"""The fields that a later attempt keeps and continues."""
_RUN = Fields(
    {
        **_ACCOUNT,
        **dict.fromkeys(("run_id", "name", "status", "created", "finished", "framework"), TEXT),
        **dict.fromkeys(("dataset", "dataset_hash", "model_hash", "config_hash"), TEXT),
        "mlflow_run_id": TEXT,
        **dict.fromkeys(("steps", "best_step", "world_size"), COUNT),
        **dict.fromkeys(
            ("epochs", "train_seconds", "examples_per_second", "tokens_per_second"), NUMBER
        ),
        "versions": Each(TEXT),
        "git": Fields({"commit": TEXT}, needed=("commit",)),
        "base": Fields({"source": TEXT, "init_from": TEXT}),
        "source": ANY_OBJECT,
        "metrics": METRICS_SHAPE,
    }
)

REMEDY = "restore the file from a copy, or train again with another run.directory"


def read(directory: str) -> dict[str, Any]:
    """The run.json of a run directory (any storage).

    The fields that Howdah reads have their types. A run that has not finished lacks some of them,
    and there may be further ones.

    Raises:
        NotFound: the file does not exist.
        DataError: it is not JSON, or its fields contradict each other.
    """
    path = storage.join(directory, RUN_JSON)
    run = storage.read_object(path, _RUN, remedy=REMEDY)
    fault = _unmatched(run.get("metrics") or {})
    if fault is not None:
        raise DataError(
            f"{RUN_JSON} is inconsistent",
            where=f"{path}: {fault.key}",
            expected=fault.expected,
            got=fault.got,
            remedy=REMEDY,
        )
    return run


def _unmatched(metrics: dict[str, Any]) -> Fault | None:
    """The first split whose figures belong to other labels than its `labels`."""
    for split, of in metrics.items():
        labels = of.get("labels") or []
        per_class, matrix = of.get("per_class"), of.get("confusion_matrix")
        if labels and per_class and list(per_class) != labels:
            expected, got = (f"figures of {', '.join(names)}" for names in (labels, per_class))
            return Fault(f"metrics.{split}.per_class", expected, got)
        if matrix is not None and {len(matrix), *map(len, matrix)} != {len(labels)}:
            return Fault(
                f"metrics.{split}.confusion_matrix",
                f"{len(labels)} rows of {len(labels)} numbers, one per label",
                f"{len(matrix)} rows of {', '.join(map(str, sorted(set(map(len, matrix)))))}",
            )
    return None
