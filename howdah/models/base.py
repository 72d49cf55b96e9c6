"""The model that a run begins from where it is a published one: which version, once and for all.

`model.base: models/NAME` (and `model.init_from`) is the version that is current when a run begins.
A run that goes on, and every attempt of a job, keeps that version although another may have been
published meanwhile: its checkpoints belong to it. So the version is looked up once, stands in
run.json, and a later start of the same run takes it from there.
"""

from __future__ import annotations

from howdah import storage
from howdah.config.model import Config
from howdah.errors import DataError, NotFound
from howdah.models.registry import located
from howdah.runs import RUN_JSON

__all__ = ["with_pinned_base"]


def with_pinned_base(config: Config) -> Config:
    """The configuration with versions in `model.base` and `model.init_from`; itself where neither
    names a published model.

    Raises:
        ModelError: the model has no such version.
    """
    model = config.model
    asked = {"base": model.base, "init_from": model.init_from}
    found = {key: located(name) for key, name in asked.items() if name is not None}
    changed = {key: path for key, path in found.items() if path is not None}
    if not changed:
        return config
    if config.checkpoint.resume != "never":
        begun = _begun_with(config.run.directory)
        for key in changed:
            before = begun.get(key)
            # NAME@VERSION is the user's word: another one than the run began with is refused later
            if before is not None and storage.parent(before) == asked[key].rstrip("/"):
                changed[key] = before
    return config.model_copy(update={"model": model.model_copy(update=changed)})


def _begun_with(run_directory: str) -> dict[str, str]:
    """{base, init_from: directory} that the run in this directory has begun with."""
    try:
        run = storage.read_json(storage.join(run_directory, RUN_JSON))
    except (NotFound, DataError):
        return {}
    base = run.get("base") if isinstance(run, dict) else None
    if not isinstance(base, dict):
        return {}
    found = {"base": base.get("source"), "init_from": base.get("init_from")}
    return {key: path for key, path in found.items() if isinstance(path, str)}
