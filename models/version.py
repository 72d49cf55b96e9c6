"""Which model: a published version, an export or a run directory, by one grammar everywhere.

    news          <publish.directory>/news, at the version that is current
    news@3        <publish.directory>/news/v=3
    news/v=3      the same
    a path        a published model, a version, an export or a run directory, on any storage

A path that is a model comes before a name below publish.directory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from howdah import storage
from howdah.config.tasks import Task, task_of
from howdah.core.address import split_address
from howdah.errors import ModelError, NotFound
from howdah.models.export_info import read_config, read_info
from howdah.models.registry import Published, decision_hash
from howdah.models.weights.pretrained import label_names_of
from howdah.run_files import RUN_JSON

_MOST_NAMED = 20


@dataclass(frozen=True, kw_only=True)
class Version:
    """A model, held at one version: another one that becomes current later is another Version.

    Its files are read when they are first asked for: what names a model need not be able to open
    it.
    """

    address: str = field(compare=False)
    """As the user wrote it."""
    path: str
    """Directory of the export; relative where the address is."""
    number: int | None = None
    """Of the published model; None: an export that is not published."""
    follows: bool = False
    """True if the address names a published model without a number: a server then takes up the
    version that becomes current later."""

    @property
    def name(self) -> str:
        """The published model's name; of another export the address."""
        return self.address if self.number is None else storage.name(storage.parent(self.path))

    @property
    def title(self) -> str:
        """For messages and tags: "news v=3"."""
        return self.name if self.number is None else f"{self.name} v={self.number}"

    @property
    def absolute_path(self) -> str:
        """`path` for processes that have other working directories."""
        if not storage.is_local(self.path):
            return self.path
        return os.path.abspath(storage.local_path(self.path))

    @cached_property
    def root(self) -> str:
        """The directory for what belongs to the model and is not in its export, such as markers of
        `howdah score`: the published model's, else the run's, else the export's own."""
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
            ModelError: config.json names none.
        """
        labels = label_names_of(read_config(self.path))
        if not labels:
            raise ModelError(
                "the model names no labels",
                where=storage.join(self.path, "config.json"),
                expected="id2label of a classifier",
                remedy="give a model exported by `howdah train` or `howdah export`",
            )
        return tuple(labels)

    @cached_property
    def task(self) -> Task:
        """What it predicts of a row."""
        return task_of(read_config(self.path).get("problem_type"))

    @property
    def run_id(self) -> str | None:
        """The run that made it."""
        return self.info.get("run_id")

    @property
    def weights(self) -> str | None:
        """SHA-256 of its weights; None for a third-party model."""
        return self.info.get("weights_sha256")

    @property
    def decision(self) -> str | None:
        """Hash of what `howdah threshold` has put into the export; None: nothing."""
        return decision_hash(self.info)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "name": self.name, "version": self.number, "path": self.absolute_path,
            "run_id": self.run_id,
        }  # fmt: skip


def open_version(
    address: str, publish_directory: str | None = None, *, key: str | None = None
) -> Version:
    """The model that an address names; a published one at the version that is current now.

    Args:
        publish_directory: publish.directory of the configuration; None: the address is a path.
        key: option or configuration key that the address stands in, for the error.
    Raises:
        ModelError: it names none; the published models are listed.
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
        expected="a published model (NAME, NAME@3 or NAME/v=3), an export (config.json,"
        " model.safetensors, ...) or a run directory with export/",
        got=got,
        remedy="`howdah publish` publishes a run, `howdah export` writes the export of one; a name"
        " is looked for in publish.directory (--config), a path anywhere",
    )


def find_version(address: str, publish_directory: str | None = None) -> Version | None:
    """`open_version`; None where the address names no model, such as a name of the hub.

    Raises:
        ModelError: a published model has no such version.
    """
    for place in _places(address, publish_directory):
        version = _at(place, address)
        if version is not None:
            return version
    return None


def _places(address: str, publish_directory: str | None) -> Iterator[str]:
    """Paths that an address may stand for, in order."""
    if not address:
        return
    yield address.rstrip("/") or address
    a_name = "://" not in address and not address.startswith("/") and ".." not in address.split("/")
    if a_name and publish_directory is not None:
        yield storage.join(publish_directory, address.rstrip("/"))


def _at(place: str, address: str) -> Version | None:
    """The model at a path; None: there is none."""
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
    except (NotFound, NotADirectoryError):
        return
    for root in sorted(roots, key=lambda entry: entry.name)[:_MOST_NAMED]:
        if versions := Published(root.path).versions():
            yield f"{root.name} (v={', '.join(map(str, versions[-5:]))})"
