"""A reference to a published model, which MLflow keeps instead of its weights: 2 kB."""

from __future__ import annotations

import json
import os
import shutil

from howdah import storage
from howdah.errors import ModelError, NotFound
from howdah.models.export_info import read_info
from howdah.models.registry import EXPORT_INFO, VersionIdentity, identity
from howdah.models.version import Version
from howdah.storage.shapes import COUNT, TEXT, Fields

FILE_NAME = "reference.json"
_REFERENCE = Fields(
    {"path": TEXT, "name": TEXT, "version": COUNT, **dict.fromkeys(VersionIdentity._fields, TEXT)},
    needed=("path",),
)


def write(directory: str, version: Version) -> None:
    """Write reference.json and a copy of howdah.json into a local directory."""
    body = {
        "path": version.absolute_path,
        "name": version.name,
        "version": version.number,
        **version.identity._asdict(),
    }
    with open(os.path.join(directory, FILE_NAME), "w") as file:
        json.dump(body, file, indent=1)
    with (
        storage.open_read(storage.join(version.path, EXPORT_INFO)) as source,
        open(os.path.join(directory, EXPORT_INFO), "wb") as target,
    ):
        shutil.copyfileobj(source, target)


def resolve(directory: str) -> str:
    """Return the path of the published version that a directory of `write` refers to.

    Raises:
        ModelError: it does not exist, or it is another model now.
    """
    reference = storage.read_object(os.path.join(directory, FILE_NAME), _REFERENCE)
    try:
        info = read_info(reference["path"])
    except NotFound:
        raise ModelError(
            "the published version that MLflow refers to does not exist",
            where=reference["path"],
            expected=f"{reference.get('name')} v={reference.get('version')}, as it was registered",
            remedy="restore it, or register another version; with publish.mlflow.mode: full MLflow"
            " keeps a copy of the whole export",
        ) from None
    expected, got = VersionIdentity.of(reference), identity(info)
    if expected != got:
        raise ModelError(
            "the published version that MLflow refers to is another model",
            where=reference["path"],
            expected=_text(expected),
            got=_text(got),
            remedy="register the version again: `howdah model register`",
        )
    return reference["path"]


def _text(model: VersionIdentity) -> str:
    decided = "no decision" if model.decision is None else f"decision {model.decision}"
    return f"weights {model.weights_sha256} of run {model.run_id}, {decided}"
