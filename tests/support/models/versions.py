"""Manifests of published versions that a test puts together without `howdah publish`."""

from __future__ import annotations

import hashlib
import json
import os


def manifest_of(directory) -> str:
    """The manifest.json of a version with the files of a local directory."""
    files = {}
    for folder, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                content = file.read()
            sha256 = hashlib.sha256(content).hexdigest()
            files[os.path.relpath(path, directory)] = {"bytes": len(content), "sha256": sha256}
    weights = files.get("model.safetensors", {"sha256": ""})["sha256"]
    return json.dumps({"run_id": "run", "weights_sha256": weights, "files": files, "metrics": {}})
