"""run.json: identity, attempts and results of a run, replaced whole at every change."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import importlib.metadata
import json
import math
import os
import resource
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

from howdah import __version__, redact, storage
from howdah.config.loader import dump_yaml
from howdah.config.model import Config
from howdah.core.user import user
from howdah.errors import DataError, NotFound, StorageError
from howdah.models.runs import hours, record
from howdah.models.runs.command import began_by
from howdah.models.runs.identity import Identity
from howdah.models.runs.settings import CONFIG, UNHASHED_TRAINING, learnt_with
from howdah.run_files import RUN_JSON

NEEDED = ("run", "data.dataset", "model", "training", "checkpoint", "evaluation", "tracking")
"""Sections that must have their secrets to train; config.yaml is written without secrets."""

_WORLDS = 50
"""Number of an attempt's newest worlds that are recorded: a job may have hundreds."""
_UNHASHED = {
    "run", "checkpoint", "tracking", "publish", "gate", "report",
    "job", "yarn", "ray", "tune",
}  # fmt: skip


class RunFile:
    """run.json of a run directory. A later attempt keeps the run's id and its list of attempts.

    Fields that other commands rely on are written before the call returns (`update`,
    `update_attempt`), however long storage takes. Fields that only inform are noted (`world`,
    `note`): if storage does not answer, they are written with the next change. Any thread may call.

    The record of a finished run stays until an attempt is admitted, that is until its dataset, base
    model and checkpoint exist: an attempt that is refused before does not lose the run's results.

    Args:
        check: called before each write; raises if this process may not write any more.
    Raises:
        DataError: a user has edited the attempts or hours, so that they cannot be continued.
    """

    def __init__(self, directory: str, check: Callable[[], None] = lambda: None) -> None:
        self._path = storage.join(directory, RUN_JSON)
        self._check = check
        self._lock = threading.RLock()
        self._late = False
        """True if noted fields are not written yet."""
        self.gpus: int | None = None
        """Number of GPUs that all ranks see; None: not known yet."""
        try:
            stored = storage.read_json(self._path)
        except (NotFound, DataError):  # missing or unreadable: begin a new record
            stored = {}
        self.values: dict[str, Any] = {}
        if isinstance(stored, dict):
            self.values = storage.checked_object(
                stored, self._path, record.KEPT_SHAPE, remedy=record.REMEDY
            )
        self._until_admitted: dict[str, Any] | None = None
        """This attempt's top-level fields, while `values` still has those of a finished run."""

    @property
    def is_of_finished(self) -> bool:
        """True if the run's results are those of a finished attempt."""
        return "finished" in self.values

    def begin(
        self, config: Config, *, world_size: int, attempt: int, submission: str | None = None
    ) -> None:
        """Write that an attempt begins.

        Args:
            submission: the cluster's application that it belongs to, if there is one.
        """
        old = self.values
        now = utc_now()
        history = list(old.get("attempts") or [])
        history.append(
            {
                "attempt": attempt,
                "started": now,
                "world_size": world_size,
                "config_hash": config_hash(config),
                "settings": learnt_with(config),
                "submission": submission,
                "host": socket.gethostname(),
                "user": redact.text(user()),
                "pid": os.getpid(),
                "command": began_by(),
            }
        )
        fresh = {
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
            "base": old.get("base"),
            "source": old.get("source"),
            "metrics": {},
            "attempts": history,
            "hours": old.get("hours") or {},
        }
        if self.is_of_finished:
            self._until_admitted = fresh
            self.values = {**old, "status": "running", "attempts": history}
        else:
            self.values = fresh
        self.write()

    def admit(self) -> None:
        """Accept this attempt; the next write replaces the finished run's results."""
        with self._lock:
            if self._until_admitted is not None:
                fresh, self._until_admitted = self._until_admitted, None
                self.values = {**fresh, "attempts": self.values["attempts"]}

    def of(self, identity: Identity) -> None:
        """Write the hashes of the dataset and the base model that the run learns from."""
        hashes = {"dataset_hash": identity.manifest, "model_hash": identity.base_model}
        self.update(dataset=identity.dataset_path, **hashes)

    def end(self, status: str, error: str | None) -> None:
        """Write how and when the newest attempt ended: finished, interrupted or failed.

        A second call (by `howdah train`, after its rank has written its end) keeps the time.
        If the attempt was not admitted, only its entry changes: the run stays finished.
        """
        with self._lock:
            if attempts := self.values.get("attempts"):
                newest = attempts[-1]
                if "ended" not in newest:
                    newest["ended"] = utc_now()
                    ended = datetime.datetime.fromisoformat(newest["ended"])
                    newest["seconds"] = hours.seconds_since(newest.get("started"), ended)
                newest["status"] = status
                if newest.get("pid") == os.getpid() and "usage" not in newest:
                    seconds = round(cpu_seconds(), 3)
                    usage = {"cpu_seconds": seconds, "gpus": self.gpus, "of": "rank 0"}
                    newest["usage"] = usage
                admitted = "resumed_at_step" in newest or status == "finished"
                if self.is_of_finished and not admitted:
                    newest["error"] = error
                    self.values["status"] = "finished"
                    self.write()
                    return
            self.admit()
            self.values.pop("finished", None)
            finished = {"finished": attempts[-1]["ended"]} if status == "finished" else {}
            self.update(status=status, error=error, **finished)

    def used(self, *, cpu_seconds: float, gpus: int | None, of: str) -> None:
        """Write what the newest attempt has used.

        Args:
            cpu_seconds: user and system time.
            gpus: number of GPUs that its ranks see; None: the number from before.
            of: the processes whose time it is: "all ranks", "rank 0", "howdah train and its rank".
        """
        with self._lock:
            if attempts := self.values.get("attempts"):
                before = attempts[-1].get("usage") or {}
                if gpus is None:
                    gpus = before.get("gpus")
                # A larger figure stays: the process that waited for a rank knows its last moments.
                if cpu_seconds >= before.get("cpu_seconds", 0.0):
                    usage = {"cpu_seconds": round(cpu_seconds, 3), "gpus": gpus, "of": of}
                    attempts[-1]["usage"] = usage
            self.write()

    def has_begun(self, submission: str | None) -> bool:
        """True if an attempt of this submission has chosen where it resumes from."""
        return submission is not None and any(
            attempt.get("submission") == submission and "resumed_at_step" in attempt
            for attempt in self.values.get("attempts") or []
        )

    def dataset_of(self, submission: str | None) -> str | None:
        """The dataset version that this submission began with; None if it is only beginning."""
        if submission is None:
            return None
        attempts = reversed(self.values.get("attempts") or [])
        same = (one for one in attempts if one.get("submission") == submission)
        return next((one["dataset"] for one in same if "dataset" in one), None)

    def world(self, number: int, size: int) -> None:
        """Note in the newest attempt that a world of ranks begins; raises only FencedOff."""
        with self._lock:
            attempt = self.values["attempts"][-1]
            began = {"world": number, "size": size, "started": utc_now()}
            attempt["worlds"] = [*attempt.get("worlds", []), began][-_WORLDS:]
            self._fields["world_size"] = size
            self._try_to_write()

    def note(self, **fields: Any) -> None:
        """Note fields of the newest attempt; raises only FencedOff."""
        with self._lock:
            self.values["attempts"][-1].update(fields)
            self._try_to_write()

    def catch_up(self) -> None:
        """Write the fields that were noted while storage was away; raises only FencedOff."""
        with self._lock:
            if self._late:
                self._try_to_write()

    def update(self, **fields: Any) -> None:
        """Set top-level fields and write; mappings are merged one level deep."""
        with self._lock:
            for key, value in fields.items():
                current = self._fields.get(key)
                if isinstance(current, dict) and isinstance(value, dict):
                    value = current | value
                self._fields[key] = value
            self.write()

    @property
    def _fields(self) -> dict[str, Any]:
        """The top-level fields of the newest attempt."""
        return self.values if self._until_admitted is None else self._until_admitted

    def update_attempt(self, **fields: Any) -> None:
        """Set fields of the newest attempt, and write."""
        with self._lock:
            self.values["attempts"][-1].update(fields)
            self.write()

    def write(self) -> None:
        """Replace run.json; raises what `check` raises."""
        with self._lock:
            self._check()
            self.values["hours"] = hours.of_run(
                self.values, now=datetime.datetime.now(datetime.UTC)
            )
            data = json.dumps(_finite(self.values), indent=1, ensure_ascii=False, allow_nan=False)
            storage.write_whole(self._path, (data + "\n").encode())
            self._late = False

    def _try_to_write(self) -> None:
        """Write without waiting: training neither waits for a note nor fails without it."""
        try:
            with storage.waiting_at_most(0.0):
                self.write()
        except StorageError:
            self._late = True


def config_hash(config: Config) -> str:
    """Hash of the sections that decide what is learnt, not of paths.

    Secrets are left out: a changed password does not change the run, and a weak one could be
    guessed from the hash.
    """
    sections = redact.config(config).model_dump(mode="json")
    for key in ("expect", "append"):  # these do not change the rows that are trained on
        del sections["data"][key]
    sections["training"] = {
        key: value for key, value in sections["training"].items() if key not in UNHASHED_TRAINING
    }
    text = json.dumps({k: v for k, v in sections.items() if k not in _UNHASHED}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def freeze_config(config: Config, directory: str) -> str:
    """Write the configuration, defaults included, to `<directory>/config.yaml`. Returns its path.

    Secrets are left out (howdah/redact.py); the first lines name the keys.
    """
    path = storage.join(directory, CONFIG)
    shown = redact.config(config)
    keys = redact.left_out(shown)
    head = "".join(f"# {line}\n" for line in ("Secrets left out of this copy:", *keys) if keys)
    storage.write_whole(path, (head + dump_yaml(shown)).encode(), mode=0o640)
    return path


@contextlib.contextmanager
def readable_config(config: Config, directory: str) -> Iterator[str]:
    """Path that a rank of this machine reads its configuration from inside the context.

    It is config.yaml, which is written here. If the configuration has secrets, it is a private copy
    (0600) with them on this machine's disk. A finished run gets a private copy too, since rank 0
    replaces its config.yaml only once its attempt is admitted.
    """
    finished = RunFile(directory).is_of_finished
    path = storage.join(directory, CONFIG) if finished else freeze_config(config, directory)
    if not (finished or redact.left_out(redact.config(config))):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="howdah-config-") as folder:  # 0700
        private = os.path.join(folder, CONFIG)
        storage.write_whole(private, dump_yaml(config).encode(), mode=0o600)
        yield private


def versions(framework: str) -> dict[str, str]:
    """Versions of the packages that affect a run's numbers."""
    packages = {"howdah": __version__, "python": sys.version.split()[0]}
    for name in (framework, "transformers", "tokenizers", "horovod", "numpy"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    return packages


def git_state() -> dict[str, Any] | None:
    """{commit, dirty} of the working directory; None if it is not a git checkout."""

    def git(*arguments: str) -> bytes:
        # Without optional locks a look at the state never makes a user's own command fail.
        environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0"}
        return subprocess.run(
            ["git", *arguments], capture_output=True, timeout=10, check=True, env=environment
        ).stdout.strip()

    try:
        # Names of files in the state need not be text in this process's encoding.
        commit, state = git("rev-parse", "HEAD"), git("status", "--porcelain", "-uno")
    except (OSError, subprocess.SubprocessError):
        return None
    return {"commit": commit.decode(), "dirty": bool(state)}


def cpu_seconds() -> float:
    """User and system time of this process and of its children that have ended (getrusage(2))."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


def utc_now() -> str:
    """The time as run.json has it: ISO 8601, UTC, in seconds."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _finite(value: Any) -> Any:
    """The value with null for NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
