"""Which model answers: a published version or an export by name, and the split between two."""

from __future__ import annotations

import hashlib
import os
import random
from dataclasses import asdict, dataclass
from typing import Any

from howdah import storage
from howdah.errors import ModelError, NotFound, UsageError
from howdah.models.export.export import resolve_export
from howdah.models.export_info import read_config, read_info
from howdah.models.registry import VERSION, Published, address
from howdah.models.weights.pretrained import label_names_of


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A model to serve or register, held at one version."""

    name: str
    """zoo for a version of a published model, else the export's path as given."""
    version: int | None
    """Of the published model; None: an export."""
    path: str
    """Directory of the export; absolute where it is local."""
    labels: tuple[str, ...]
    info: dict[str, Any]
    """howdah.json; {} for a model of others."""

    @property
    def title(self) -> str:
        """For messages and tags: "zoo v=3"."""
        return self.name if self.version is None else f"{self.name} v={self.version}"

    @property
    def run_id(self) -> str | None:
        """The run that made it."""
        return self.info.get("run_id")

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        known = asdict(self)
        return {key: known[key] for key in ("name", "version", "path")} | {"run_id": self.run_id}


def find(model: str, publish_directory: str) -> Variant:
    """The model of this name, at the version that is current now: a later one is another call's.

    Args:
        model: see `registry.address`.
        publish_directory: publish.directory of the configuration.
    Raises:
        ModelError: there is none, or it names no labels.
    """
    directory = resolve_export(address(model, publish_directory))
    name, version = published(directory)
    try:
        info = read_info(directory)
    except NotFound:
        info = {}
    labels = label_names_of(read_config(directory))
    if not labels:
        raise ModelError(
            "the model names no labels",
            where=storage.join(directory, "config.json"),
            expected="id2label of a classifier",
            remedy="give a model exported by `howdah train` or `howdah export`",
        )
    if storage.is_local(directory):  # a server's processes have working directories of their own
        directory = os.path.abspath(storage.local_path(directory))
    return Variant(
        name=name or model, version=version, path=directory, labels=tuple(labels), info=info
    )


def published(directory: str) -> tuple[str | None, int | None]:
    """(name, version) of a version's directory; (None, None) of others.

    Raises:
        ModelError: a version without its manifest, which does not exist.
    """
    found = VERSION.fullmatch(storage.name(directory))
    root = storage.parent(directory)
    if not found or not Published(root).entries():
        return None, None
    number = int(found[1])
    Published(root).version(number)
    return storage.name(root), number


def require_comparable(one: Variant, other: Variant, share: float | None) -> float:
    """The checked share of `other`.

    Raises:
        UsageError: the share is none.
        ModelError: the models have different labels: their answers would not be comparable.
    """
    if share is None or not 0.0 < share < 1.0:
        raise UsageError(
            "--and needs the share of requests that go to the other model",
            where="--share",
            expected="more than 0 and less than 1, for example 0.1",
            got="none" if share is None else str(share),
        )
    tasks = [each.info.get("task", "single_label") for each in (one, other)]
    if tasks[0] != tasks[1] or bool(one.info.get("pairs")) != bool(other.info.get("pairs")):
        raise ModelError(
            "the two models are of different tasks",
            where=other.path,
            expected=f"{tasks[0]} ({one.path})",
            got=tasks[1],
            remedy="serve them apart, or train both on datasets of one task",
        )
    if one.labels != other.labels:
        raise ModelError(
            "the two models have different labels",
            where=other.path,
            expected=", ".join(one.labels) + f" ({one.path})",
            got=", ".join(other.labels),
            remedy="serve them apart, or train both on datasets with the same labels",
        )
    return share


def choose(key: str | None, share: float, salt: str) -> int:
    """0 or 1: which of two models answers; 1 for `share` of all keys.

    Requests with one key always get the same answer for one `salt`, on every server and after a
    restart; those without are split at random.

    >>> [choose(f"user-{n}", 0.5, "zoo") for n in range(8)]
    [0, 0, 0, 1, 1, 0, 1, 1]
    """
    if key is None:
        return int(random.random() < share)
    digest = hashlib.sha256(f"{salt}\n{key}".encode("utf-8", "surrogatepass")).digest()
    return int(int.from_bytes(digest[:8], "big") < share * 2**64)
