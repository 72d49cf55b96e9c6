"""A mini cluster's state: one JSON file in its directory, and the locks around it."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from howdah.core.processes import locked
from howdah.errors import ClusterError, NotFound, UsageError
from howdah.faults import typed
from tools.minicluster.daemons import Record
from tools.minicluster.plan import Plan

FILE = "state.json"
VERSION = 1
_UNUSABLE = re.compile(r"[^\w/.~!&'()+;=@-]")


class State:
    """The state file of a cluster, read again each time, since other processes change it too.

    Args:
        directory: the cluster's directory.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.path = Path(directory, FILE)

    def exists(self) -> bool:
        """Whether a cluster was ever started in this directory."""
        return self.path.exists()

    def load(self) -> tuple[Plan, dict[str, Record]]:
        """The plan, and the daemons that were started and not ended on purpose.

        Raises:
            NotFound: the directory has no cluster.
            ClusterError: the file is damaged, or has another version.
            StorageError: the file cannot be read.
        """
        with typed(str(self.path), "read the mini cluster's state"):
            try:
                text = self.path.read_text(encoding="utf-8", errors="replace")
            except (FileNotFoundError, NotADirectoryError):
                raise NotFound(
                    "this directory has no mini cluster",
                    where=self.directory,
                    remedy="`python -m tools.minicluster start`, or set its --directory",
                ) from None
        try:
            state = json.loads(text)
        except ValueError as error:
            raise self._damaged(str(error)) from None
        if not isinstance(state, dict):
            raise self._damaged(type(state).__name__)
        if state.get("version") != VERSION:
            raise ClusterError(
                "the mini cluster in this directory was made by another version",
                where=str(self.path),
                expected=f"version {VERSION}",
                got=f"version {state.get('version')}",
                remedy="stop it with that version, or remove the directory",
            )
        try:
            records = {name: Record(**values) for name, values in state["daemons"].items()}
            return Plan(**state["plan"]), records
        except (AttributeError, KeyError, TypeError) as error:
            raise self._damaged(f"{type(error).__name__}: {error}") from None

    def _damaged(self, got: str) -> ClusterError:
        return ClusterError(
            "the state of the mini cluster in this directory is damaged",
            where=str(self.path),
            got=got,
            remedy="end the daemons with this directory in their arguments (ps -ef), and remove it",
        )

    def save(self, plan: Plan, records: Mapping[str, Record]) -> None:
        """Write the state atomically."""
        state = {
            "version": VERSION,
            "plan": dataclasses.asdict(plan),
            "daemons": {name: dataclasses.asdict(record) for name, record in records.items()},
        }
        temporary = self.path.with_name(f".{FILE}.{os.getpid()}")
        temporary.write_text(json.dumps(state, indent=1))
        temporary.chmod(0o600)
        temporary.replace(self.path)

    def note(self, name: str, record: Record | None) -> dict[str, Record]:
        """Store one daemon's start, or (None) its end; return all records."""
        with self._held("state.lock", wait=True):
            plan, records = self.load()
            records.pop(name, None)
            if record is not None:
                records[name] = record
            self.save(plan, records)
        return records

    def note_own(self, name: str, changes: Mapping[str, Mapping[str, str]]) -> Plan:
        """Store the own settings of one daemon (`Plan.own`); empty ones remove them."""
        with self._held("state.lock", wait=True):
            plan, records = self.load()
            kept = {daemon: values for daemon, values in plan.own.items() if daemon != name}
            if changes:
                kept[name] = {site: dict(values) for site, values in changes.items()}
            plan = dataclasses.replace(plan, own=kept)
            self.save(plan, records)
        return plan

    @contextlib.contextmanager
    def starting_or_stopping(self) -> Iterator[None]:
        """Context with the lock for a start or stop of the whole cluster.

        Raises:
            ClusterError: another process has the lock.
        """
        os.makedirs(self.directory, exist_ok=True)
        with self._held("lock", wait=False):
            yield

    @contextlib.contextmanager
    def _held(self, name: str, *, wait: bool) -> Iterator[None]:
        """Context with a file lock, which the kernel releases if this process dies."""
        with open(os.path.join(self.directory, name), "a") as file:
            if wait:
                fcntl.flock(file, fcntl.LOCK_EX)
            elif not locked(file):
                raise ClusterError(
                    "another process is starting or stopping the mini cluster of this directory",
                    where=self.directory,
                    remedy="wait for it, or choose another --directory",
                )
            yield

    def check_directory(self) -> None:
        """Refuse a directory with other contents, which `stop` might remove, and one whose path has
        a character that Hadoop's settings (URIs, lists, class paths) cannot have.

        Raises:
            UsageError: the directory cannot be used.
        """
        if unusable := _UNUSABLE.search(self.directory):
            raise UsageError(
                "Hadoop cannot use this directory, because of a character in its path",
                where=self.directory,
                got=repr(unusable[0]),
                remedy="choose another --directory",
            )
        directory = Path(self.directory)
        if not directory.exists() or self.exists():
            return
        if not directory.is_dir():
            raise UsageError("the mini cluster's directory is a file", where=self.directory)
        others = [path.name for path in directory.iterdir() if path.name != "lock"]
        if others:
            raise UsageError(
                "this directory has other contents than a mini cluster",
                where=self.directory,
                got=", ".join(sorted(others)[:5]),
                remedy="choose an empty or a new --directory",
            )
