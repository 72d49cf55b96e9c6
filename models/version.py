"""Addresses of models: published versions, exports and run directories have the same grammar
everywhere.

    news          <publish.directory>/news, at the version that is current
    news@3        <publish.directory>/news/v=3
    news/v=3      the same
    a path        a published model, a version, an export or a run directory, on any storage

If an address is both the path of a model and a name below publish.directory, the path wins.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from howdah import storage
from howdah.config.data import InputKind
from howdah.config.tasks import Task, task_of
from howdah.core.address import split_address
from howdah.data.family import family_of
from howdah.errors import ModelError, NotFound, UsageError
from howdah.models.export_info import read_config, read_info
from howdah.models.registry import VERSION, Published, VersionIdentity, identity
from howdah.models.weights.pretrained import label_names_of
from howdah.run_files import RUN_JSON

_MOST_NAMED = 20
OF_FILES = "sha256:"
"""Beginning of the run id of a third-party model; the hash of its files follows."""


@dataclass(frozen=True, kw_only=True)
class Version:
    """A model at a fixed version: a version that becomes current later is another Version.

    Its files are read on first use, so that code which only names a model need not be able to open
    it.
    """

    address: str = field(compare=False)
    """The address as the user wrote it."""
    path: str
    """Directory of the export; relative if the address is, unless that is only `.` or `v=3`."""
    number: int | None = None
    """Number of the published version; None: an export that is not published."""
    follows: bool = False
    """True if the address names a published model without a number: a server then switches to the
    version that becomes current later."""

    @property
    def name(self) -> str:
        """The published model's name; for another export, the address."""
        return self.address if self.number is None else storage.name(storage.parent(self.path))

    @property
    def title(self) -> str:
        """Name for messages and tags, such as "news v=3"."""
        return self.name if self.number is None else f"{self.name} v={self.number}"

    @property
    def absolute_path(self) -> str:
        """`path` for processes that have other working directories."""
        if not storage.is_local(self.path):
            return self.path
        return os.path.abspath(storage.local_path(self.path))

    @cached_property
    def root(self) -> str:
        """The directory for files that belong to the model but are not in its export, such as
        markers of `howdah score`: the published model's, else the run's, else the export's."""
        above = storage.parent(self.absolute_path)
        if self.number is not None or storage.exists(storage.join(above, RUN_JSON)):
            return above
        return self.absolute_path

    @cached_property
    def info(self) -> dict[str, Any]:
        """howdah.json; {} for a third-party model.

        Raises:
            ModelError: the file is damaged.
        """
        try:
            return read_info(self.path)
        except NotFound:
            return {}

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The classifier's labels, by number.

        Raises:
            ModelError: config.json has no labels.
        """
        labels = label_names_of(read_config(self.path))
        if not labels:
            raise ModelError(
                "the model has no labels: it is not a classifier",
                where=storage.join(self.path, "config.json"),
                expected="id2label",
                remedy="use a model exported by `howdah train` or `howdah export`",
            )
        return tuple(labels)

    @cached_property
    def task(self) -> Task:
        """The task that the model was trained for."""
        return task_of(read_config(self.path).get("problem_type"))

    @cached_property
    def kind(self) -> InputKind:
        """What its rows are. A directory without config.json is refused where it is opened."""
        try:
            config = read_config(self.path)
        except NotFound:
            return "text"
        return family_of(config, where=storage.join(self.path, "config.json")).kind

    @property
    def pairs(self) -> bool:
        """True if its texts are pairs."""
        return bool(self.info.get("pairs", False))

    @property
    def run_id(self) -> str | None:
        """Id of the run that trained it."""
        return self.info.get("run_id")

    @property
    def weights(self) -> str | None:
        """SHA-256 of its weights; None for a third-party model."""
        return self.info.get("weights_sha256")

    @property
    def decision(self) -> str | None:
        """Hash of the decision that `howdah model threshold` put into the export; None without
        one."""
        return self.identity.decision

    @property
    def identity(self) -> VersionIdentity:
        """Run, weights and decision."""
        return identity(self.info)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        named = {"name": self.name, "version": self.number}
        return named | {"path": self.absolute_path, "run_id": self.run_id}


def require_kind(kind: InputKind, needed: InputKind, *, where: str, remedy: str) -> None:
    """Refuse a model that classifies another kind of rows.

    Raises:
        UsageError: it classifies something else.
    """
    if kind != needed:
        message = f"the model classifies {kind}s, not {needed}s"
        raise UsageError(message, where=where, remedy=remedy)


def require_one_label(task: Task, *, pairs: bool, where: str, remedy: str) -> None:
    """Refuse a model that does not predict a single label of a single text.

    Raises:
        UsageError: it predicts something else.
    """
    if task != "single_label" or pairs:
        raise UsageError(
            "the model does not predict a single label of a single text",
            where=where,
            got=f"task {task}" + (", pairs of texts" if pairs else ""),
            remedy=remedy,
        )


def open_version(
    address: str, publish_directory: str | None = None, *, key: str | None = None
) -> Version:
    """The model that an address names; a published model at the version that is current now.

    Args:
        publish_directory: publish.directory of the configuration; None: the address is a path.
        key: option or configuration key that has the address, for the error.
    Raises:
        ModelError: there is no such model; the error lists the published ones.
    """
    version = find_version(address, publish_directory)
    if version is not None:
        return version
    places = list(_places(address, publish_directory))
    got = f"nothing at {' nor at '.join(places)}" if places else "an empty address"
    if any(storage.is_dir(place) for place in places):
        got = f"no config.json, export/config.json or current.json in {' nor in '.join(places)}"
    if publish_directory is not None:
        names = ", ".join(_published_in(publish_directory)) or "none"
        got += f"; published in {publish_directory}: {names}"
    raise ModelError(
        "there is no such model",
        where=address if key is None else f"{key} {address}",
        expected="a published model in publish.directory (NAME, NAME@3 or NAME/v=3), or the path of"
        " an export (config.json, model.safetensors, ...) or of a run directory with export/",
        got=got,
        remedy="`howdah publish` publishes a run, `howdah export` writes its export",
    )


def find_version(address: str, publish_directory: str | None = None) -> Version | None:
    """`open_version`, but None if the address does not name a model (it may be a name of the hub).

    Raises:
        ModelError: a published model has no such version.
    """
    for place in _places(address, publish_directory):
        version = _at(place, address)
        if version is not None:
            return version
    return None


def _places(address: str, publish_directory: str | None) -> Iterator[str]:
    """Paths that an address may mean, in order of precedence."""
    if not address:
        return
    place = address.rstrip("/") or address
    *above, last = place.split("/")
    if {*above} <= {".", ".."} and (last in (".", "..") or VERSION.fullmatch(last)):
        place = os.path.abspath(place)  # the names of a model and of a version are in it
    yield place
    a_name = "://" not in address and not address.startswith("/") and ".." not in address.split("/")
    if a_name and publish_directory is not None:
        yield storage.join(publish_directory, address.rstrip("/"))


def _at(place: str, address: str) -> Version | None:
    """The model at a path; None if there is none."""
    root, number = split_address(place)
    if number is not None and Published(root).exists():
        Published(root).version(number)
        return Version(address=address, path=Published(root).path_of(number), number=number)
    for path in (place, storage.join(place, "export")):
        if storage.exists(storage.join(path, "config.json")):
            return Version(address=address, path=path)
    published = Published(place)
    current = published.current()
    if current is None:
        return None
    number = current["version"]
    published.version(number)
    path = published.path_of(number)
    return Version(address=address, path=path, number=number, follows=True)


def _published_in(directory: str) -> Iterator[str]:
    """Names of the published models below a directory, with the numbers of their versions."""
    try:
        roots = [entry for entry in storage.list_dir(directory) if entry.is_dir]
    except NotFound:
        return
    for root in sorted(roots, key=lambda entry: entry.name)[:_MOST_NAMED]:
        if versions := Published(root.path).versions():
            yield f"{root.name} (v={', '.join(map(str, versions[-5:]))})"
