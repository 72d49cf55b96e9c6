"""A mini cluster's state: one JSON file in its directory, and the locks around it."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from howdah.errors import ClusterError, NotFound, UsageError
from howdah.faults import typed
from tools.minicluster.daemons import Record
from tools.minicluster.plan import Plan

FILE = "state.json"
VERSION = 1


class State:
    """What a directory says of its cluster; read anew each time, other processes change it too.

    Args:
        directory: the cluster's.
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
            NotFound: no cluster here.
            ClusterError: the file is damaged, or another version's.
            StorageError: it cannot be read.
        """
        with typed(str(self.path), "read the mini cluster's state"):
            try:
                text = self.path.read_text(encoding="utf-8", errors="replace")
            except (FileNotFoundError, NotADirectoryError):
                raise NotFound(
                    "there is no mini cluster in this directory",
                    where=self.directory,
                    remedy="`python -m tools.minicluster start`, or name its --directory",
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
            expected="JSON with version, plan and daemons",
            got=got,
            remedy="end the daemons that run with this directory in their arguments"
            " (ps -ef), and remove it",
        )

    def save(self, plan: Plan, records: Mapping[str, Record]) -> None:
        """Write the state, whole."""
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
        """Note one daemon's start, or (None) its end; all records."""
        with self._held("state.lock", wait=True):
            plan, records = self.load()
            records.pop(name, None)
            if record is not None:
                records[name] = record
            self.save(plan, records)
        return records

    def note_own(self, name: str, changes: Mapping[str, Mapping[str, str]]) -> Plan:
        """Note settings of one daemon alone, `Plan.own`; none: it has none any more."""
        with self._held("state.lock", wait=True):
            plan, records = self.load()
            own = {daemon: values for daemon, values in plan.own.items() if daemon != name}
            if changes:
                own[name] = {site: dict(values) for site, values in changes.items()}
            plan = dataclasses.replace(plan, own=own)
            self.save(plan, records)
        return plan

    @contextlib.contextmanager
    def starting_or_stopping(self) -> Iterator[None]:
        """Held while the whole cluster is started or stopped.

        Raises:
            ClusterError: another process does so now.
        """
        os.makedirs(self.directory, exist_ok=True)
        with self._held("lock", wait=False):
            yield

    @contextlib.contextmanager
    def _held(self, name: str, *, wait: bool) -> Iterator[None]:
        """The kernel frees the lock of a process that dies."""
        with open(os.path.join(self.directory, name), "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise ClusterError(
                    "another process is starting or stopping the mini cluster of this directory",
                    where=self.directory,
                    remedy="wait for it, or take another --directory",
                ) from None
            yield

    def refuse_foreign_directory(self) -> None:
        """A directory with other contents is not ours to write into, or to remove.

        Raises:
            UsageError: it is one.
        """
        directory = Path(self.directory)
        if not directory.exists() or self.exists():
            return
        if not directory.is_dir():
            raise UsageError(
                "a mini cluster's directory is a file", where=self.directory,
                remedy="name an empty or a new --directory",
            )  # fmt: skip
        others = [path.name for path in directory.iterdir() if path.name != "lock"]
        if others:
            raise UsageError(
                "the directory holds something else than a mini cluster",
                where=self.directory,
                got=", ".join(sorted(others)[:5]),
                remedy="name an empty or a new --directory",
            )
