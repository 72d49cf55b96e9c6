"""run.json: what a run is and what came of it, replaced whole at every change."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import importlib.metadata
import json
import math
import secrets
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from howdah import __version__, storage
from howdah.config import Config, dump_yaml
from howdah.errors import DataError, NotFound

__all__ = ["FILE_NAME", "RunFile", "config_hash", "freeze_config", "git_state", "versions"]

FILE_NAME = "run.json"

_WORLDS = 50
"""Newest worlds of an attempt that are kept: a job may see hundreds."""
_UNHASHED = {"run", "checkpoint", "tracking", "publish", "gate", "yarn"}
_UNHASHED_TRAINING = {"shard_cache_bytes", "shard_cache_directory"}


class RunFile:
    """run.json of a run directory. A later attempt keeps the run's id and its list of attempts.

    Args:
        directory: run directory.
        check: called before each write; raises where this process may not write any more.
    """

    def __init__(self, directory: str, check: Callable[[], None] = lambda: None) -> None:
        self._path = storage.join(directory, FILE_NAME)
        self._check = check
        try:
            found = storage.read_json(self._path)
        except (NotFound, DataError):  # none yet, or none that can be read: begin one
            found = {}
        self.values: dict[str, Any] = found if isinstance(found, dict) else {}

    def begin(
        self, config: Config, *, world_size: int, attempt: int, submission: str | None = None
    ) -> None:
        """Note that an attempt begins; of which of the cluster's applications, if of any."""
        old = self.values
        now = _now()
        history = list(old.get("attempts", []))
        history.append(
            {
                "attempt": attempt,
                "started": now,
                "world_size": world_size,
                "config_hash": config_hash(config),
                "submission": submission,
            }
        )
        self.values = {
            "run_id": old.get("run_id") or f"{config.run.name}-{secrets.token_hex(6)}",
            "name": config.run.name,
            "status": "running",
            "created": old.get("created") or now,
            "framework": config.training.framework,
            "world_size": world_size,
            "config_hash": config_hash(config),
            "versions": versions(config.training.framework),
            "git": git_state(),
            "mlflow_run_id": old.get("mlflow_run_id"),
            "metrics": {},
            "attempts": history,
        }
        self.write()

    def has_begun(self, submission: str | None) -> bool:
        """An attempt of this submission has come as far as to choose where it goes on from."""
        return submission is not None and any(
            attempt.get("submission") == submission and "resumed_at_step" in attempt
            for attempt in self.values.get("attempts", [])
        )

    def dataset_of(self, submission: str | None) -> str | None:
        """The dataset's version that this submission began with; None: it is only beginning."""
        of_it = [one for one in self.values.get("attempts", [])
                 if submission is not None and one.get("submission") == submission]  # fmt: skip
        return next((one["dataset"] for one in reversed(of_it) if "dataset" in one), None)

    def world(self, number: int, size: int) -> None:
        """Note that a world of ranks begins, in the newest attempt."""
        attempt = self.values["attempts"][-1]
        worlds = [*attempt.get("worlds", []), {"world": number, "size": size, "started": _now()}]
        attempt["worlds"] = worlds[-_WORLDS:]
        self.update(world_size=size)

    def update(self, **fields: Any) -> None:
        """Set top-level fields and write; mappings are merged one level deep."""
        for key, value in fields.items():
            there = self.values.get(key)
            if isinstance(there, dict) and isinstance(value, dict):
                value = there | value
            self.values[key] = value
        self.write()

    def update_attempt(self, **fields: Any) -> None:
        """Set fields of the newest attempt, and write."""
        self.values["attempts"][-1].update(fields)
        self.write()

    def write(self) -> None:
        """Replace run.json; raises what `check` raises."""
        self._check()
        data = json.dumps(_finite(self.values), indent=1, ensure_ascii=False, allow_nan=False)
        storage.write_whole(self._path, (data + "\n").encode())


def config_hash(config: Config) -> str:
    """Hash of the sections that decide what is learnt (not of where things are put)."""
    sections = config.model_dump(mode="json")
    sections["training"] = {
        key: value for key, value in sections["training"].items() if key not in _UNHASHED_TRAINING
    }
    text = json.dumps({k: v for k, v in sections.items() if k not in _UNHASHED}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def freeze_config(config: Config, directory: str) -> str:
    """Write the configuration, defaults included, to `<directory>/config.yaml`; its path."""
    path = storage.join(directory, "config.yaml")
    storage.write_whole(path, dump_yaml(config).encode())
    return path


def versions(framework: str) -> dict[str, str]:
    """Versions of what decides a run's numbers."""
    found = {"howdah": __version__, "python": sys.version.split()[0]}
    for name in (framework, "transformers", "tokenizers", "horovod", "numpy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def git_state() -> dict[str, Any] | None:
    """{commit, dirty} of the working directory; None where it is no git checkout."""
    try:
        commit, status = (
            subprocess.run(
                ["git", *words], capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit, "dirty": bool(status)}


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _finite(value: Any) -> Any:
    """JSON has no NaN: an undefined metric is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
