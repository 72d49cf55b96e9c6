"""A trained model, opened to classify: export -> cleaning, encoder, forward pass.

Used by `howdah evaluate` and `howdah predict`, so that serving cleans, cuts and encodes as the
training data was.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from howdah import modelfiles, storage
from howdah.clean import clean_text
from howdah.config_data import CleanOptions, Columns
from howdah.config_model import ModelSection, TrainingSection
from howdah.encode import Encoder
from howdah.errors import ModelError, UsageError
from training import env
from training.basemodel import TOKENIZER_FILES, load_base
from training.distilbert import HEAD_NAMES, label_names_of
from training.export import INFO, resolve_export
from training.metrics import softmax
from training.planner import pad_multiple, padded_length
from training.quiet import starting_tensorflow

__all__ = ["EXPORT_PATTERNS", "FRAMEWORKS", "ServedModel", "choose_framework", "open_model"]

FRAMEWORKS = ("torch", "tensorflow")
EXPORT_PATTERNS = ["config.json", "model*.safetensors*", *TOKENIZER_FILES, INFO]

Forward = Callable[[np.ndarray, np.ndarray], np.ndarray]

_BATCH_TOKENS = 8192


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """An export in memory, ready to classify."""

    path: str
    """The export directory, as the user named it."""
    framework: str
    labels: list[str]
    """Label names by number."""
    run_id: str
    """Of howdah.json; of a foreign model `sha256:` and the hash of its files."""
    max_length: int
    """Tokens a text is cut at."""
    clean: CleanOptions
    """Cleaning as it was applied to the training data; all off for a foreign model."""
    columns: Columns
    """Which columns the training texts were made of."""
    encoder: Encoder
    gpu: bool
    """It runs on a GPU."""
    forward: Forward
    """(ids_BT int32, mask_BT int32) -> logits_BC float32, without dropout."""
    positions: int
    """Rows of the position table: no batch is wider."""

    def clean_text(self, text: str) -> str:
        """The text as the ETL would have cleaned it."""
        return clean_text(text, self.clean)

    def scores(self, texts: Sequence[str]) -> np.ndarray:
        """Probabilities of texts that are clean already: float32 (N, C), rows in the given order.

        Rows of like length share a batch, so that little of it is padding.
        """
        scores_NC = np.zeros((len(texts), len(self.labels)), np.float32)
        if not texts:
            return scores_NC
        ids_N = self.encoder.encode(list(texts), self.max_length)
        order = np.argsort([-len(ids) for ids in ids_N], kind="stable")
        start = 0
        while start < len(order):
            longest = len(ids_N[order[start]])
            width = padded_length(longest, pad_multiple(self.gpu), self.positions)
            rows = order[start : start + max(1, _BATCH_TOKENS // width)]
            start += len(rows)
            ids_BT = np.full((len(rows), width), self.encoder.pad_id, np.int32)
            mask_BT = np.zeros((len(rows), width), np.int32)
            for at, row in enumerate(rows):
                ids_BT[at, : len(ids_N[row])] = ids_N[row]
                mask_BT[at, : len(ids_N[row])] = 1
            scores_NC[rows] = softmax(self.forward(ids_BT, mask_BT))
        return scores_NC


def open_model(
    path: str, *, framework: str | None = None, threads: int | None = None
) -> ServedModel:
    """Open an export, a run directory with one, or any DistilBERT classifier's directory.

    Args:
        path: on any storage.
        framework: tensorflow or torch; None: the one it was trained with where that is installed.
        threads: compute threads; None: all cores.
    Raises:
        ModelError: no export, no classifier in it, or neither framework installed.
    """
    directory = resolve_export(path)
    local = modelfiles.fetch(directory, patterns=EXPORT_PATTERNS)
    info_path = storage.join(local, INFO)
    info = storage.read_json(info_path) if storage.exists(info_path) else {}
    config = storage.read_json(storage.join(local, "config.json"))
    labels = label_names_of(config)
    if not labels:
        raise ModelError(
            "the model names no labels",
            where=storage.join(directory, "config.json"),
            expected="id2label of a classifier",
            remedy="give a model that was exported by `howdah train` or `howdah export`",
        )
    chosen = choose_framework(framework, trained_with=info.get("framework"))
    env.prepare(chosen, threads=threads)
    base = load_base(local, label_names=labels)
    missing = [name for name in HEAD_NAMES if name not in base.weights]
    if missing:
        raise ModelError(
            "the model has no trained classifier",
            where=directory,
            expected=", ".join(missing),
            remedy="give an export, not a base model",
        )
    limit = int(base.config["max_position_embeddings"])
    encoder = Encoder.load(local)
    if info.get("tokenizer_hash", encoder.hash) != encoder.hash:
        raise ModelError(
            "the export's tokenizer is not the one it was trained with",
            where=directory,
            expected=f"tokenizer {info['tokenizer_hash']}",
            got=encoder.hash,
            remedy="restore the tokenizer's files, or export the run again",
        )
    forward, gpu = _forward(chosen, base.config, base.weights, len(labels))
    return ServedModel(
        path=path,
        framework=chosen,
        labels=labels,
        run_id=str(info.get("run_id") or f"sha256:{base.hash}"),
        max_length=min(int(info.get("max_length", limit)), limit),
        # A step that the export does not name was not applied to its training data.
        clean=CleanOptions(
            **{name: info.get("clean", {}).get(name, False) for name in CleanOptions.model_fields}
        ),
        columns=Columns(**info.get("columns", {})),
        encoder=encoder,
        gpu=gpu,
        forward=forward,
        positions=limit,
    )


def choose_framework(asked: str | None, *, trained_with: str | None) -> str:
    """The framework to run a model with: asked for, in this process already, trained with, any.

    Raises:
        UsageError: a framework that does not exist, or is not installed.
        ModelError: none is installed.
    """
    if asked is not None and (asked not in FRAMEWORKS or not _installed(asked)):
        raise UsageError(
            "that framework is not to be had",
            expected=" or ".join(name for name in FRAMEWORKS if _installed(name))
            or "none installed",
            got=asked,
        )
    loaded = [name for name in FRAMEWORKS if name in sys.modules]
    for name in (asked, *loaded, trained_with, *FRAMEWORKS):
        if name in FRAMEWORKS and _installed(name):
            return name
    raise ModelError(
        "no framework is installed to run the model with",
        expected="torch or tensorflow",
        remedy="install the project's packages, e.g. `make setup`",
    )


def _installed(name: str) -> bool:
    return name in sys.modules or importlib.util.find_spec(name) is not None


def _grow_memory(devices: Any) -> None:
    """Have TensorFlow take GPU memory as it is needed: several processes may predict on one GPU.

    By default the first of them would take all of it. Tried with devices made up, not on a GPU.

    Args:
        devices: `tf.config`.
    """
    gpus = devices.list_physical_devices("GPU")
    for gpu in gpus:
        # A program that runs models already has chosen: it cannot be changed after the start.
        with contextlib.suppress(RuntimeError):
            devices.experimental.set_memory_growth(gpu, True)


def _forward(
    framework: str, config: dict, weights: dict[str, np.ndarray], classes: int
) -> tuple[Forward, bool]:
    """The forward pass, and whether it runs on a GPU."""
    # Full precision: a score must not depend on the machine that serves it.
    settings = {
        "num_labels": classes,
        "training": TrainingSection(framework=framework, precision="fp32"),
        "model": ModelSection(),
    }
    if framework == "torch":
        import torch

        from training import model_torch

        device = "cuda" if torch.cuda.is_available() else "cpu"
        net = model_torch.build(config, weights, device=device, **settings)
        return model_torch.forward_fn(net), device == "cuda"
    with starting_tensorflow():
        import tensorflow as tf

        from training import model_tf

        _grow_memory(tf.config)
        tf.constant(0)  # starts its runtime, which looks for GPUs and tells of each it misses
        gpu = bool(tf.config.list_logical_devices("GPU"))
    return model_tf.forward_fn(model_tf.build(config, weights, **settings)), gpu
