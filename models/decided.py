"""An export's decision and its profile.json, which belong together: `howdah drift` only compares
scores that were made with the same decision."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np

from howdah import storage
from howdah.config.splits import VALIDATION
from howdah.config.tasks import Task
from howdah.errors import NotFound
from howdah.models.decision import KEY, Decision
from howdah.models.fit_decision import logits_of
from howdah.models.profile import profile as profiles
from howdah.models.profile import reference as references
from howdah.models.profile.profile import PROFILE
from howdah.models.registry import EXPORT_INFO as INFO


def has_profile(export: str) -> bool:
    """True if an export has a profile.json."""
    return storage.exists(storage.join(export, PROFILE))


def profile_with(
    export: str, task: Task, decision: Decision, labels_N: np.ndarray, scores_NC: np.ndarray
) -> bytes | None:
    """The export's profile.json with its outputs counted again under a decision; None if it has no
    profile.json.

    Args:
        labels_N, scores_NC: rows of the validation split; scores without a decision.
    """
    if not has_profile(export):
        return None
    profile = profiles.read(storage.join(export, PROFILE))
    every = max(1, -(-len(labels_N) // references.MOST_ROWS))
    labels_N, scores_NC = labels_N[::every], scores_NC[::every]
    scores_NC = decision.scores(task, logits_of(task, scores_NC)).astype(np.float32)
    right_N = decision.rule(task, profile.bins.labels).right(labels_N, scores_NC)
    new_profile = references.redecided(
        profile, scores_NC, right_N, split=VALIDATION, decision=decision
    )
    return new_profile.to_bytes()


def keep(
    files: dict[str, bytes],
    target: str,
    labels: Sequence[str],
    task: Task,
    progress: Callable[[str], None],
) -> Decision:
    """Carry what `howdah model threshold` fitted for the same weights over to an export that is
    written again, with the profile.json that was counted with it. Returns the decision.

    Args:
        files: the new export's files by name.
        target: path of the export that the new one replaces; it need not exist.
    """
    path = storage.join(target, INFO)
    try:
        stored = storage.read_object(path)
    except NotFound:
        return Decision()
    described = json.loads(files[INFO])
    if stored.get("weights_sha256") != described["weights_sha256"] or KEY not in stored:
        return Decision()
    decision = Decision.of(stored, labels, task, path)
    described[KEY] = stored[KEY]
    text = json.dumps(described, indent=2, sort_keys=True, ensure_ascii=False)
    files[INFO] = (text + "\n").encode("utf-8")
    if PROFILE in files and decision.hash is not None:
        del files[PROFILE]  # its scores were made without a decision
        if has_profile(target) and profiles.reference_of(target) is not None:
            files[PROFILE] = storage.read_bytes(storage.join(target, PROFILE))
        else:
            progress("no profile.json for this decision: `howdah drift --make-reference` makes it")
    return decision
