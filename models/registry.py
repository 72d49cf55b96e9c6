"""Read published models: versions, the pointer to the current one, history.

    <publish.directory>/<name>/v=3/           an export and manifest.json; never altered
                              /history/000004.json   which version was made current, when, by whom
                              /current.json          a copy of the newest entry of the history
                              /mlflow.json           the versions' numbers in MLflow's registry
                              /claims/3              number 3 is taken
                              /profiles/v=3.json     profile of a version that was published without

A version without manifest.json does not exist: on S3, where directories cannot be renamed, it is
the last file to be written. serving/registry/publish.py writes all of these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from howdah import storage
from howdah.core.address import split_address
from howdah.data.manifest import content_hash
from howdah.errors import ModelError, NotFound
from howdah.storage.shapes import (
    ANY_OBJECT,
    COUNT,
    NUMBER_OR_NULL,
    TEXT,
    Each,
    Fields,
    Items,
    Shape,
)

EXPORT_INFO = "howdah.json"
"""File in an export that describes it and its run (models/export/export.py writes it)."""

DECISION_KEYS = ("temperature", "reject_below", "thresholds")
"""Keys of `decision` in that file that change predictions (models/decision.py)."""

EXPORT_FOLDERS = ("saved_model",)
"""Directories in an export."""

MANIFEST = "manifest.json"
POINTER = "current.json"
MLFLOW = "mlflow.json"
HISTORY = "history"
VERSION = re.compile(r"v=([1-9][0-9]*)")
"""Name of a version's directory."""
_ENTRY = re.compile(r"([0-9]{6,})\.json")

_PARTS: dict[str, Shape] = {
    "run_id": TEXT,
    "weights_sha256": TEXT,
    "decision": TEXT,
    "metrics": Each(Each(NUMBER_OR_NULL)),
    "dataset": Fields({"path": TEXT, "hash": TEXT}),
}
_MANIFEST = Fields(
    {
        **_PARTS,
        "files": Each(Fields({"bytes": COUNT, "sha256": TEXT}, needed=("bytes", "sha256"))),
        "lineage": Fields({"base": ANY_OBJECT}),
    }
)
_NEEDED = ("run_id", "weights_sha256", "files", "metrics")
"""Fields that a manifest must have for its version to be published or judged."""
_ENTRY_SHAPE = Fields(
    {**_PARTS, "version": COUNT, "order": Items(COUNT), "gate": ANY_OBJECT},
    needed=("version", "order"),
)
_ANEW = "`howdah publish --version N` writes it again"


@dataclass(frozen=True)
class Published:
    """A model's directory of published versions, which need not exist yet.

    Args:
        root: <publish.directory>/<name>, on any storage.
    """

    root: str

    @property
    def pointer(self) -> str:
        """Path of current.json."""
        return storage.join(self.root, POINTER)

    def exists(self) -> bool:
        """True once a version was published."""
        return storage.exists(self.pointer) or bool(self.entries())

    def path_of(self, version: int) -> str:
        """Path of a version, which need not exist."""
        return storage.join(self.root, f"v={version}")

    def current(self) -> dict | None:
        """The contents of current.json; None while no version is published.

        Raises:
            ModelError: the file does not name a version.
        """
        try:
            shape = Fields(_PARTS)
            current = storage.read_object(self.pointer, shape, kind=ModelError, remedy=_ANEW)
        except NotFound:
            return None
        number = current.get("version")
        if not COUNT.fits(number) or number == 0:
            raise ModelError(
                "current.json does not name a version",
                where=self.pointer,
                expected='{"version": N, ...}',
                got=repr(number),
                remedy=_ANEW,
            )
        return current

    def versions(self) -> list[int]:
        """Numbers of the complete versions, in order."""
        return [n for n in self.numbers() if storage.exists(self._manifest(n))]

    def numbers(self) -> list[int]:
        """Numbers of all version directories, including those without a manifest."""
        matches = [VERSION.fullmatch(name) for name in self._names("")]
        return sorted(int(match[1]) for match in matches if match)

    def version(self, number: int, *, whole: bool = False) -> dict:
        """A version's manifest.

        Args:
            whole: check that it has all fields that publishing writes.
        Raises:
            ModelError: there is no such version; the error names those that exist.
            DataError: the manifest is damaged.
        """
        shape = Fields(_MANIFEST.of, needed=_NEEDED) if whole else _MANIFEST
        try:
            return storage.read_object(self._manifest(number), shape)
        except NotFound:
            existing = ", ".join(str(n) for n in self.versions())
            raise ModelError(
                f"the model has no version {number}",
                where=self.root,
                expected=f"one of {existing}" if existing else None,
                remedy=None if existing else "publish a run with `howdah publish`",
            ) from None

    def entries(self) -> list[int]:
        """Numbers of the history's entries, in order."""
        matches = [_ENTRY.fullmatch(name) for name in self._names(HISTORY)]
        return sorted(int(match[1]) for match in matches if match)

    def entry_path(self, number: int) -> str:
        """Path of an entry of the history."""
        return storage.join(self.root, HISTORY, f"{number:06d}.json")

    def history(self) -> list[dict]:
        """The entries, in order."""
        return [self._entry(number) for number in self.entries()]

    def newest(self) -> tuple[int, dict | None]:
        """Number and contents of the history's newest entry; (0, None) before the first."""
        numbers = self.entries()
        if not numbers:
            return 0, None
        return numbers[-1], self._entry(numbers[-1])

    def _entry(self, number: int) -> dict:
        return storage.read_object(self.entry_path(number), _ENTRY_SHAPE)

    def _manifest(self, number: int) -> str:
        return storage.join(self.path_of(number), MANIFEST)

    def _names(self, below: str) -> list[str]:
        path = storage.join(self.root, below) if below else self.root
        try:
            return [entry.name for entry in storage.list_dir(path)]
        except NotFound:
            return []


def manifest_of(path: str, *, whole: bool = False) -> dict | None:
    """The manifest of the version in a directory; None if the directory is not a version.

    Args:
        whole: see `Published.version`.
    Raises:
        DataError: the manifest is damaged.
    """
    root, number = split_address(path)
    if number is None or not storage.exists(storage.join(path, MANIFEST)):
        return None
    return Published(root).version(number, whole=whole)


def decision_hash(info: Mapping[str, Any]) -> str | None:
    """Identity of the decision in an export's howdah.json; None without one. The same weights with
    another decision predict differently, so records that identify a model's results include it."""
    decision = info.get("decision")
    if not isinstance(decision, Mapping):  # refused where the model is opened
        return None
    used = {key: decision[key] for key in DECISION_KEYS if key in decision}
    return content_hash(used) if used else None


class VersionIdentity(NamedTuple):
    """Identity of a model's results: two decisions on the same weights are two versions."""

    run_id: str | None
    weights_sha256: str | None
    decision: str | None
    """See `decision_hash`."""

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> VersionIdentity:
        """The identity in a record that has these fields, such as a version's manifest."""
        return cls(*(record.get(name) for name in cls._fields))

    @property
    def without_decision(self) -> VersionIdentity:
        """The identity of the run's weights, whatever is decided by them."""
        return self._replace(decision=None)


def identity(info: Mapping[str, Any]) -> VersionIdentity:
    """The identity of the export that a howdah.json describes."""
    return VersionIdentity.of({**info, "decision": decision_hash(info)})


def profile_path(directory: str, name: str) -> str:
    """Path for the profile of an export that was written without one.

    Args:
        directory: the export's directory. A published version's files never change, so its profile
            lies in profiles/ beside the versions.
    """
    root, version = storage.parent(directory), storage.name(directory)
    if VERSION.fullmatch(version) and storage.exists(storage.join(directory, MANIFEST)):
        return storage.join(root, "profiles", f"{version}.json")
    return storage.join(directory, name)
