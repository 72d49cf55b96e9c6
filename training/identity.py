"""What a checkpoint belongs to, and the refusal of one that belongs to another run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from howdah.errors import CheckpointError

__all__ = ["Identity", "check_identity", "check_plan"]


@dataclass(frozen=True)
class Identity:
    """What a checkpoint belongs to: a run goes on only from one whose identity is its own."""

    base_model: str
    """Hash of the base model."""
    dataset: str
    """Hash of the dataset's manifest."""
    tokenizer: str
    """Hash of the tokenizer."""
    labels: tuple[str, ...]
    """Label names in their order."""
    plan: str
    """Plan hash; may change between epochs, never inside one."""
    plan_inputs: tuple[tuple[str, str], ...] = ()
    """(key, value) of what the plan hash is made of, to name the difference."""

    def as_dict(self) -> dict:
        """Plain JSON."""
        return json.loads(json.dumps(asdict(self)))


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
            raise CheckpointError(
                f"the checkpoint belongs to another {what}",
                where=path,
                expected=f"{what} {_short(ours[field])} (this run's {key})",
                got=f"{what} {_short(theirs.get(field))} (the checkpoint's)",
                remedy=f"set {key} back, choose another run.directory, or start afresh with"
                " `--resume never`",
            )


def check_plan(path: str, manifest: dict, meta: dict, expect: Identity) -> None:
    """Inside an epoch the plan must be the one that chose the rows so far."""
    identity = manifest.get("identity", {})
    inside = int(meta.get("plan", {}).get("step", 0)) != 0
    if identity.get("plan") == expect.plan or not inside:
        return
    theirs = dict(identity.get("plan_inputs", ()))
    ours = dict(expect.plan_inputs)
    changed = [key for key in ours if theirs.get(key) != ours[key]]
    raise CheckpointError(
        "the checkpoint was taken in the middle of an epoch, under another plan of batches",
        where=path,
        expected=", ".join(f"{key}={ours[key]}" for key in changed) or f"plan {expect.plan}",
        got=", ".join(f"{key}={theirs.get(key)}" for key in changed)
        or f"plan {identity.get('plan')}",
        remedy="set these back until the epoch is over (rows would be lost or repeated), or start"
        " afresh with `--resume never`",
    )


def _short(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if len(text) <= 120 else text[:117] + "..."
