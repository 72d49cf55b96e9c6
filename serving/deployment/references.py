"""What MLflow keeps of a model by reference: where it is published, 2 kB instead of its weights."""

from __future__ import annotations

import json
import os
import shutil

from howdah import storage
from howdah.errors import ModelError, NotFound
from howdah.models.export_info import read_info
from howdah.models.registry import EXPORT_INFO
from howdah.models.version import Version
from howdah.storage.shapes import COUNT, TEXT, Fields

FILE_NAME = "reference.json"
_SAID = Fields(
    {"path": TEXT, "name": TEXT, "version": COUNT, "run_id": TEXT, "weights_sha256": TEXT},
    needed=("path",),
)


def write(directory: str, version: Version) -> None:
    """Write reference.json and a copy of howdah.json into a local directory."""
    body = {
        "path": version.absolute_path,
        "name": version.name,
        "version": version.number,
        "run_id": version.run_id,
        "weights_sha256": version.weights,
    }
    with open(os.path.join(directory, FILE_NAME), "w") as file:
        json.dump(body, file, indent=1)
    with (
        storage.open_read(storage.join(version.path, EXPORT_INFO)) as source,
        open(os.path.join(directory, EXPORT_INFO), "wb") as target,
    ):
        shutil.copyfileobj(source, target)


def resolve(directory: str) -> str:
    """The published version that a directory of `write` refers to.

    Raises:
        ModelError: it is not there, or another model is.
    """
    said = storage.read_object(os.path.join(directory, FILE_NAME), _SAID)
    try:
        info = read_info(said["path"])
    except NotFound:
        raise ModelError(
            "the published version that MLflow refers to is not there",
            where=said["path"],
            expected=f"{said.get('name')} v={said.get('version')}, as it was registered",
            remedy="restore it, or register another version; with publish.mlflow.mode: full MLflow"
            " keeps a copy of the whole export",
        ) from None
    if info.get("weights_sha256") != said.get("weights_sha256"):
        raise ModelError(
            "the published version that MLflow refers to is another model",
            where=said["path"],
            expected=f"weights with sha256 {said.get('weights_sha256')} (run {said.get('run_id')})",
            got=f"sha256 {info.get('weights_sha256')} (run {info.get('run_id')})",
            remedy="register the version again: `howdah model register`",
        )
    return said["path"]
