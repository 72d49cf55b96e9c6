"""The identity of a run's checkpoints, and the refusal of another run's checkpoint."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from howdah import storage
from howdah.errors import CheckpointError, DataError, NotFound


@dataclass(frozen=True)
class Identity:
    """The facts that checkpoints depend on: a run resumes only from those of equal identity."""

    base_model: str
    """Hash of the base model."""
    dataset: str
    """Hash of the dataset's manifest and of the choice of its shards (`Dataset.identity`)."""
    tokenizer: str
    """Hash of the tokenizer."""
    labels: tuple[str, ...]
    """Label names in their order."""
    plan: str
    """Hash of the plan, which may change between epochs, but not inside one."""
    adapters: str = "none"
    """Rank and places of the adapters (training.lora)."""
    plan_inputs: tuple[tuple[str, str], ...] = ()
    """(key, value) pairs that the plan hash is computed from; errors name those that differ."""
    manifest: str = ""
    """Hash of only the dataset's manifest, for run.json; it is not compared."""
    dataset_path: str = ""
    """Path of the dataset, for messages; it is not compared."""

    def as_dict(self) -> dict:
        """Plain JSON, for a checkpoint's manifest."""
        return json.loads(json.dumps(asdict(self)))


def check_identity(path: str, manifest: dict, expect: Identity) -> None:
    """Refuse a checkpoint of another base model, dataset, tokenizer, set of labels or adapters."""
    stored, current = {"adapters": "none"} | manifest.get("identity", {}), expect.as_dict()
    names = {
        "base_model": ("base model", "model.base"),
        "dataset": ("dataset", "data.dataset"),
        "tokenizer": ("tokenizer", "model.base"),
        "labels": ("set of labels", "data.labels"),
        "adapters": ("set of adapters", "training.lora"),
    }
    for field, (what, key) in names.items():
        if stored.get(field) != current[field]:
            got, back = f"{what} {_short(stored.get(field))} (the checkpoint's)", f"set {key} back"
            if field == "dataset" and stored.get("dataset_path"):
                got += f" at {stored['dataset_path']}"
                back = f"set {key} to {stored['dataset_path']}"
            raise CheckpointError(
                f"the checkpoint belongs to another {what}",
                where=path,
                expected=f"{what} {_short(current[field])} (this run's {key})",
                got=got,
                remedy=f"{back}, choose another run.directory, or start from the beginning with"
                " `--set checkpoint.resume=never`",
            )


class OtherPlan(CheckpointError):
    """The checkpoint is inside an epoch that another plan began."""

    def naming_epoch_end(self, checkpoints: Sequence[Any]) -> OtherPlan:
        """Add the newest checkpoint at an epoch's end to the remedy: any plan may continue there.

        Args:
            checkpoints: the run's checkpoints (`Saved`), newest first.
        """
        path = next((saved.path for saved in checkpoints if _at_epoch_end(saved.path)), None)
        if path is not None:
            self.remedy += (
                ", or continue from the newest checkpoint at an epoch's end"
                f" (`--set checkpoint.resume={path}`)"
            )
        return self


def _at_epoch_end(path: str) -> bool:
    try:
        return int(storage.read_json(storage.join(path, "meta.json"))["plan"]["step"]) == 0
    except (NotFound, DataError, LookupError, TypeError, ValueError):
        return False


def check_plan(path: str, manifest: dict, meta: dict, expect: Identity) -> None:
    """Raise OtherPlan if a checkpoint is inside an epoch that another plan began."""
    identity = manifest.get("identity", {})
    inside = int(meta.get("plan", {}).get("step", 0)) != 0
    if identity.get("plan") == expect.plan or not inside:
        return
    stored = dict(identity.get("plan_inputs", ()))
    current = dict(expect.plan_inputs)
    changed = [key for key in current if stored.get(key) != current[key]]
    raise OtherPlan(
        "the checkpoint was saved in the middle of an epoch, with another plan of batches",
        where=path,
        expected=", ".join(f"{key}={current[key]}" for key in changed) or f"plan {expect.plan}",
        got=", ".join(f"{key}={stored.get(key)}" for key in changed)
        or f"plan {identity.get('plan')}",
        remedy="set these back until the epoch is over (otherwise rows would be lost or repeated),"
        " start from the beginning with `--set checkpoint.resume=never`",
    )


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 120 else text[:117] + "..."
