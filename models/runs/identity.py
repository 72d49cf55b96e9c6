"""The identity of a checkpoint's run, and the refusal of a checkpoint of another run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from howdah import storage
from howdah.errors import CheckpointError, DataError, NotFound


@dataclass(frozen=True)
class Identity:
    """What a run's checkpoints depend on: a run resumes only from checkpoints of equal identity."""

    base_model: str
    """Hash of the base model."""
    dataset: str
    """Hash of the dataset's manifest and of the choice of its shards (`Dataset.identity`)."""
    tokenizer: str
    """Hash of the tokenizer."""
    labels: tuple[str, ...]
    """Label names in their order."""
    plan: str
    """Plan hash; may change between epochs, never inside one."""
    plan_inputs: tuple[tuple[str, str], ...] = ()
    """(key, value) pairs that the plan hash is computed from; errors name those that differ."""
    earlier_plans: tuple[str, ...] = ()
    """The same plan's hashes under earlier planner versions, which are accepted as well."""
    manifest: str = ""
    """Hash of the dataset's manifest alone: for run.json, not compared."""
    dataset_path: str = ""
    """Where the dataset lies: for messages, not compared."""

    def as_dict(self) -> dict:
        """Plain JSON, as in a checkpoint's manifest."""
        fields = asdict(self)
        del fields["earlier_plans"]
        return json.loads(json.dumps(fields))


def check_identity(path: str, manifest: dict, expect: Identity) -> None:
    """Refuse a checkpoint of another base model, dataset, tokenizer or set of labels."""
    theirs, ours = manifest.get("identity", {}), expect.as_dict()
    names = {
        "base_model": ("base model", "model.base"),
        "dataset": ("dataset", "data.dataset"),
        "tokenizer": ("tokenizer", "model.base"),
        "labels": ("set of labels", "data.labels"),
    }
    for field, (what, key) in names.items():
        if theirs.get(field) != ours[field]:
            got, back = f"{what} {_short(theirs.get(field))} (the checkpoint's)", f"set {key} back"
            if field == "dataset" and theirs.get("dataset_path"):
                got += f" at {theirs['dataset_path']}"
                back = f"set {key} to {theirs['dataset_path']}"
            raise CheckpointError(
                f"the checkpoint belongs to another {what}",
                where=path,
                expected=f"{what} {_short(ours[field])} (this run's {key})",
                got=got,
                remedy=f"{back}, choose another run.directory, or start anew with `--resume never`",
            )


class OtherPlan(CheckpointError):
    """A checkpoint inside an epoch that another plan has begun."""

    def naming_epoch_end(self, found: Sequence[Any]) -> OtherPlan:
        """Add to the remedy the newest checkpoint at an epoch's end: any plan may continue there.

        Args:
            found: the run's checkpoints (`Saved`), newest first.
        """
        path = next((saved.path for saved in found if _at_epoch_end(saved.path)), None)
        if path is not None:
            self.remedy += f", or continue from the newest at an epoch's end (`--resume {path}`)"
        return self


def _at_epoch_end(path: str) -> bool:
    try:
        return int(storage.read_json(storage.join(path, "meta.json"))["plan"]["step"]) == 0
    except (NotFound, DataError, LookupError, TypeError, ValueError):
        return False


def check_plan(path: str, manifest: dict, meta: dict, expect: Identity) -> None:
    """Raise OtherPlan for a checkpoint inside an epoch that another plan has begun."""
    identity = manifest.get("identity", {})
    inside = int(meta.get("plan", {}).get("step", 0)) != 0
    if identity.get("plan") in (expect.plan, *expect.earlier_plans) or not inside:
        return
    theirs = dict(identity.get("plan_inputs", ()))
    ours = dict(expect.plan_inputs)
    changed = [key for key in ours if theirs.get(key) != ours[key]]
    raise OtherPlan(
        "the checkpoint was taken in the middle of an epoch, under another plan of batches",
        where=path,
        expected=", ".join(f"{key}={ours[key]}" for key in changed) or f"plan {expect.plan}",
        got=", ".join(f"{key}={theirs.get(key)}" for key in changed)
        or f"plan {identity.get('plan')}",
        remedy="set these back until the epoch is over (rows would be lost or repeated), start"
        " anew with `--resume never`",
    )


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 120 else text[:117] + "..."
