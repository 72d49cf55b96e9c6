"""What executors on a cluster get for a prediction: the model's files, and memory for Python."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from howdah import modelfiles, storage
from howdah.config_data import SparkOptions
from howdah.errors import ConfigError, ModelError
from howdah.manifest import content_hash
from training.distilbert import CONFIG_DEFAULTS
from training.export import INFO, resolve_export
from training.predict_executor import ModelPlace
from training.serve import EXPORT_PATTERNS

__all__ = ["Model", "find_model", "memory_overhead_mib"]

_OVERHEAD = ("spark.executor.memoryOverhead", "spark.executor.memoryOverheadFactor")
_JVM_MIB = 384
"""Spark's own least overhead: the JVM's memory outside its heap."""
_FRAMEWORK_MIB = {"torch": 545, "tensorflow": 640}
"""What a Python worker has resident before it opens a model: NumPy, Arrow, the framework."""
_WEIGHTS = 2.1
"""Copies of the weights at once while the model is opened: the file's arrays, the model's own."""
_HIDDEN = {"torch": 6.1, "tensorflow": 2.2}
"""Arrays of tokens x hidden_dim at once while a batch is classified."""
_BATCH_TOKENS = 8192
_ROOM_MIB = 64
"""Rows on their way, and what malloc keeps."""
_ODD = re.compile(r"[,#%\s]")


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model's files, wherever they lie."""

    path: str
    """The export's directory."""
    files: Mapping[str, int]
    """{name: bytes} of the files that opening it needs."""
    key: str
    """Names their state."""
    info: Mapping[str, Any]
    """howdah.json; empty for a foreign model."""
    decoded_bytes: int
    """Its weights in memory, in float32."""
    hidden_dim: int
    """Width of its feed-forward layers."""

    def urls(self) -> dict[str, str]:
        """{name under which it is shipped: URL of the file}, as `spark.yarn.dist.files` takes them.

        Files on HDFS are localised by YARN from where they lie; others from a copy on this machine.

        Raises:
            ConfigError: a path that such a list cannot hold.
        """
        directory = self.path
        if storage.scheme(self.path) != "hdfs":
            local = os.path.abspath(modelfiles.fetch(self.path, patterns=EXPORT_PATTERNS))
            directory = f"file://{local}"
        if _ODD.search(directory):
            raise ConfigError(
                "a list of Spark's cannot hold the model's path",
                where=directory,
                expected="a path without comma, #, % and white space",
                remedy="copy or publish the model to such a path",
            )
        return {self.shipped(name): storage.join(directory, name) for name in self.files}

    def shipped(self, name: str) -> str:
        """The name of one of its files in a container; no two models share one."""
        return f"howdah-model-{self.key}.{name}"

    def place(self, *, shipped: bool) -> ModelPlace:
        """Where workers find it: in a directory of this machine, or among what was shipped."""
        if shipped:
            return ModelPlace(key=self.key, files={name: self.shipped(name) for name in self.files})
        local = modelfiles.fetch(self.path, patterns=EXPORT_PATTERNS)
        return ModelPlace(key=self.key, directory=os.path.abspath(local))

    @contextlib.contextmanager
    def added_to(self, context: Any) -> Iterator[None]:
        """Ship it with a SparkContext that runs already: its driver sends each executor a copy."""
        local = os.path.abspath(modelfiles.fetch(self.path, patterns=EXPORT_PATTERNS))
        with tempfile.TemporaryDirectory(prefix="howdah-model-") as links:
            for name in self.files:
                link = os.path.join(links, self.shipped(name))
                os.symlink(os.path.join(local, name), link)
                context.addFile(f"file://{link}")  # of a plain path the link would be resolved
            yield


def find_model(model: str) -> Model:
    """The model that `model` means, without reading its weights.

    Raises:
        ModelError: no model, or its weights are not whole safetensors.
    """
    path = resolve_export(model)
    found = {
        entry.name: entry
        for entry in storage.list_dir(path)
        if not entry.is_dir and any(fnmatchcase(entry.name, p) for p in EXPORT_PATTERNS)
    }
    decoded = sum(
        _decoded_bytes(storage.join(path, name)) for name in found if name.endswith(".safetensors")
    )
    config = storage.read_json(storage.join(path, "config.json"))
    state = [path, [[e.name, e.size, str(e.modified)] for _, e in sorted(found.items())]]
    return Model(
        path=path,
        files={name: entry.size for name, entry in found.items()},
        key=content_hash(state),
        info=storage.read_json(storage.join(path, INFO)) if INFO in found else {},
        decoded_bytes=decoded,
        hidden_dim=int(config.get("hidden_dim", CONFIG_DEFAULTS["hidden_dim"])),
    )


def _decoded_bytes(path: str) -> int:
    """Bytes of a safetensors file's tensors as float32, by its header."""
    try:
        with storage.open_read(path) as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size)) if size < 2**27 else None
        tensors = [value for name, value in header.items() if name != "__metadata__"]
        return sum(4 * math.prod(tensor["shape"]) for tensor in tensors)
    except (ValueError, AttributeError, KeyError, TypeError):
        raise ModelError(
            "weights are not a whole safetensors file",
            where=path,
            expected="a header with each tensor's shape",
            remedy="copy the file again; it may have been cut short",
        ) from None


def memory_overhead_mib(options: SparkOptions, framework: str, model: Model) -> int | None:
    """MiB outside the JVM's heap that an executor needs for its Python workers, one a task.

    None where the user's own Spark settings say how much. docs/benchmarks.md has the measurements.

    Args:
        framework: tensorflow or torch.
    """
    if any(key in options.conf for key in _OVERHEAD):
        return None
    cores = int(options.conf.get("spark.executor.cores", options.executor_cores))
    tasks = max(1, cores // int(options.conf.get("spark.task.cpus", "1")))
    batch = _HIDDEN[framework] * _BATCH_TOKENS * model.hidden_dim * 4
    worker = _FRAMEWORK_MIB[framework] + _ROOM_MIB
    worker += (_WEIGHTS * model.decoded_bytes + batch) / 2**20
    return math.ceil(_JVM_MIB + tasks * worker)
