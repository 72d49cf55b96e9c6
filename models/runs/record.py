"""Reads a run's run.json for all who rely on what it says: gate, report, publish and others.

A user may have edited the file, or it may be another program's: what is read here has its type.
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
_BIN = Kind("a bin with lower, upper, rows, confidence and accuracy", lambda value: _is_bin(value))
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
"""{split: what `training/evaluation` measures on it}."""
_HOURS = dict.fromkeys(("wall", "cpu", "gpu", "vcore", "gib"), NUMBER)
_PRICES = ("per_vcore_hour", "per_gib_hour", "per_gpu_hour")
_RUN = Fields(
    {
        **dict.fromkeys(
            ("run_id", "name", "status", "created", "finished", "framework", "dataset",
             "dataset_hash", "model_hash", "config_hash", "mlflow_run_id"),
            TEXT,
        ),
        **dict.fromkeys(("steps", "best_step", "world_size"), COUNT),
        **dict.fromkeys(
            ("epochs", "train_seconds", "examples_per_second", "tokens_per_second"), NUMBER
        ),
        "versions": Each(TEXT),
        "git": Fields({"commit": TEXT}, needed=("commit",)),
        "base": Fields({"source": TEXT, "init_from": TEXT}),
        "source": ANY_OBJECT,
        "metrics": METRICS_SHAPE,
        "attempts": Items(
            Fields({
                **dict.fromkeys(("dataset", "submission", "started"), TEXT),
                "seconds": NUMBER,
                "world_size": COUNT,
                "usage": Fields({"cpu_seconds": NUMBER, "gpus": NUMBER}),
            })
        ),
        "hours": Fields({
            **_HOURS,
            "applications": Each(Fields(_HOURS)),
            "cost": Fields({"amount": NUMBER, "currency": TEXT}, needed=("amount",)),
            "prices": Fields({**dict.fromkeys(_PRICES, NUMBER), "currency": TEXT}),
        }),
    }
)  # fmt: skip

_REMEDY = (
    "restore the file from a copy; `howdah train` with another run.directory makes the run anew"
)


def read(directory: str) -> dict[str, Any]:
    """The run.json of a run directory (any storage).

    Fields that others read have their types; an older run's may be missing, and there may be more.

    Raises:
        NotFound: there is none.
        DataError: it is not JSON, or not whole.
    """
    path = storage.join(directory, RUN_JSON)
    run = storage.read_object(path, _RUN, remedy=_REMEDY)
    found = _unmatched(run.get("metrics") or {})
    if found is not None:
        raise DataError(
            f"{RUN_JSON} is not whole",
            where=f"{path}: {found.key}",
            expected=found.expected,
            got=found.got,
            remedy=_REMEDY,
        )
    return run


def _is_bin(value: Any) -> bool:
    """A bin without rows has no confidence and no accuracy."""
    given = ("lower", "upper", *(("confidence", "accuracy") if _rows(value) else ()))
    return _rows(value) is not None and all(NUMBER.fits(value.get(name)) for name in given)


def _rows(value: Any) -> int | None:
    rows = value.get("rows") if isinstance(value, dict) else None
    return rows if COUNT.fits(rows) else None


def _unmatched(metrics: dict[str, Any]) -> Fault | None:
    """Figures of labels that are not those of the split's `labels`."""
    for split, of in metrics.items():
        labels = of.get("labels") or []
        own, matrix = of.get("per_class"), of.get("confusion_matrix")
        if labels and own and list(own) != labels:
            return Fault(
                f"metrics.{split}.per_class", f"figures of {', '.join(labels)}",
                f"figures of {', '.join(own)}",
            )  # fmt: skip
        if matrix is not None and {len(matrix), *map(len, matrix)} != {len(labels)}:
            return Fault(
                f"metrics.{split}.confusion_matrix",
                f"{len(labels)} rows of {len(labels)} numbers, as there are labels",
                f"{len(matrix)} rows of {', '.join(map(str, sorted(set(map(len, matrix)))))}",
            )
    return None
