"""The model's files and the Python memory of executors that predict on a cluster."""

from __future__ import annotations

import contextlib
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from howdah import storage
from howdah.config.data import SparkOptions
from howdah.data import modelfiles
from howdah.data.family import ModelFamily, family_of
from howdah.data.manifest import content_hash
from howdah.errors import ConfigError, ModelError, UsageError
from howdah.models import integrity
from howdah.models.export.onnx_graph import FILES as ONNX_FILES
from howdah.models.export_info import read_config
from howdah.models.opened.opened import patterns_of
from howdah.models.version import Version
from howdah.models.weights.tensors import read_header
from howdah.serving.prediction.executor import ModelLocation
from howdah.spark.sizing import JVM_MIB, OVERHEAD

_FRAMEWORK_MIB = {"torch": 545, "tensorflow": 640}
"""Resident MiB of a Python worker before it opens a model: NumPy, Arrow, the framework."""
_FRAMEWORK_MIB |= dict.fromkeys(ONNX_FILES, 105)
_WEIGHTS = 2.1
"""Simultaneous copies of the weights while the model is opened: the file's arrays, the model's."""
_HIDDEN = {"torch": 6.1, "tensorflow": 2.2} | dict.fromkeys(ONNX_FILES, 2.2)
"""Simultaneous arrays of tokens x hidden_dim while a batch is classified."""
_BATCH_TOKENS = 8192
_ROOM_MIB = 64
"""Memory for rows in transfer, and for what malloc does not return."""
_ODD = re.compile(r"[,#%\s]")


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """The files that executors open a model from, on any storage."""

    version: Version
    files: Mapping[str, int]
    """{name: bytes} of the files needed to open it."""
    patterns: list[str]
    """Patterns of the files' names."""
    key: str
    """Hash of the path and of the files' sizes and times."""
    decoded_bytes: int
    """Bytes of the weights in memory, in float32."""
    hidden_dim: int
    """Width of the feed-forward layers."""
    hashes: integrity.ManifestFiles | None
    """Hashes in the manifest of a published version; None: the model is not one."""

    @property
    def path(self) -> str:
        """The export's directory."""
        return self.version.path

    @property
    def name(self) -> str:
        """Value in the partition column `model`: the published model's name, else the run's id."""
        if self.version.number is not None:
            return self.version.name
        return self.version.run_id or f"model-{self.key}"

    @property
    def identity(self) -> dict[str, str | int | None]:
        """Fields that identify the model of scored rows.

        The weights of a third-party model are identified by its files' sizes and times.
        """
        return {
            "name": self.name, "version": self.version.number, **self.version.identity._asdict(),
            "weights_sha256": self.version.weights or self.key,
        }  # fmt: skip

    def urls(self) -> dict[str, str]:
        """Return {name in the container: the file's URL}, for `spark.yarn.dist.files`.

        YARN copies files on HDFS from there, others from a copy on this machine.

        Raises:
            ConfigError: such a list cannot hold the path.
        """
        directory = self.path
        if storage.scheme(self.path) != "hdfs":
            local = os.path.abspath(modelfiles.fetch(self.path, patterns=self.patterns))
            directory = f"file://{local}"
        if _ODD.search(directory):
            raise ConfigError(
                "spark.yarn.dist.files cannot hold the model's path",
                where=directory,
                expected="a path without comma, #, % and white space",
            )
        return {self.shipped(name): storage.join(directory, name) for name in self.files}

    def shipped(self, name: str) -> str:
        """Return a file's name in a container, unique to this model."""
        return f"howdah-model-{self.key}.{name}"

    def location(self, *, shipped: bool) -> ModelLocation:
        """Return the model's location for workers: a local directory, or the shipped files."""
        if shipped:
            return ModelLocation(
                key=self.key, files={name: self.shipped(name) for name in self.files},
                hashes=self.hashes,
            )  # fmt: skip
        local = modelfiles.fetch(self.path, patterns=self.patterns)
        return ModelLocation(key=self.key, directory=os.path.abspath(local), hashes=self.hashes)

    @contextlib.contextmanager
    def added_to(self, context: Any) -> Iterator[None]:
        """Ship the files with a running SparkContext, whose driver sends each executor a copy."""
        local = os.path.abspath(modelfiles.fetch(self.path, patterns=self.patterns))
        with tempfile.TemporaryDirectory(prefix="howdah-model-") as links:
            for name in self.files:
                link = os.path.join(links, self.shipped(name))
                os.symlink(os.path.join(local, name), link)
                context.addFile(f"file://{link}")  # in a plain path Spark resolves the link
            yield


def environment_kind(framework: str) -> str:
    """Return the kind of environment (howdah/packaging/kinds.py) of executors with a framework."""
    return "score" if framework in ONNX_FILES else f"predict-{framework}"


def files_of(version: Version, framework: str | None = None) -> ModelFiles:
    """List a model's files, without reading its weights.

    Args:
        framework: framework to run the model with; None: see `serving_framework`.
    Raises:
        ModelError: an unknown family, or broken safetensors headers.
        UsageError: the model classifies images.
    """
    path = version.path
    patterns = patterns_of(framework)
    entries = {
        entry.name: entry
        for entry in storage.list_dir(path)
        if not entry.is_dir and any(fnmatchcase(entry.name, p) for p in patterns)
    }
    decoded = sum(
        _decoded_bytes(entry.path)
        for name, entry in entries.items()
        if name.endswith(".safetensors")
    )
    config_path = storage.join(path, "config.json")
    config = read_config(path)
    family = family_of(config, where=config_path)
    if family.kind != "text":
        raise UsageError(
            f"{family.kind}s are predicted in one process, not with Spark",
            where=path,
            remedy="leave --master out, and give files as --source and --output; several machines"
            " can each take a part of the files",
        )
    state = [path, [[e.name, e.size, str(e.modified)] for _, e in sorted(entries.items())]]
    return ModelFiles(
        version=version,
        files={name: entry.size for name, entry in entries.items()},
        patterns=patterns,
        key=content_hash(state),
        decoded_bytes=decoded,
        hidden_dim=_inner(family, config, where=config_path),
        hashes=integrity.files_of(path),
    )


def _inner(family: ModelFamily, config: Mapping[str, Any], *, where: str) -> int:
    """Read the width of the feed-forward layers."""
    width = family.complete(config)[family.keys.inner]
    if not isinstance(width, int) or width < 1:
        raise ModelError(
            "config.json has sizes that are not integers above 0",
            where=where,
            got=f"{family.keys.inner}={width!r}",
            remedy="restore the file: `howdah export` writes the run's export again",
        )
    return width


def _decoded_bytes(path: str) -> int:
    """Compute the bytes of a safetensors file's tensors in float32, from its header."""
    try:
        with storage.open_read(path) as file:
            tensors, _ = read_header(file)
        return sum(4 * math.prod(tensor["shape"]) for tensor in tensors.values())
    except (ValueError, KeyError, TypeError):
        raise ModelError(
            "not a complete safetensors file", where=path, remedy="copy the file again"
        ) from None


def memory_overhead_mib(options: SparkOptions, framework: str, model: ModelFiles) -> int | None:
    """Estimate the MiB outside the JVM's heap for an executor's Python workers, one per task.

    None if the user's Spark settings set it. docs/on-the-cluster.md has the measurements.

    Args:
        framework: tensorflow, torch, or a format of ONNX.
    """
    if any(key in options.conf for key in OVERHEAD):
        return None
    cores = int(options.conf.get("spark.executor.cores", options.executor_cores))
    tasks = max(1, cores // int(options.conf.get("spark.task.cpus", "1")))
    batch = _HIDDEN[framework] * _BATCH_TOKENS * model.hidden_dim * 4
    worker = _FRAMEWORK_MIB[framework] + _ROOM_MIB
    worker += (_WEIGHTS * model.decoded_bytes + batch) / 2**20
    return math.ceil(JVM_MIB + tasks * worker)
