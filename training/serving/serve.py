"""Opens an export to classify with: cleaning, encoder, forward pass; of texts or of images.

`howdah evaluate` and `howdah predict` use it, so that texts are cleaned, truncated and encoded as
the training data was.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from howdah import storage
from howdah.config.data import CleanOptions, Columns, InputKind
from howdah.config.model import ModelSection, TrainingSection
from howdah.config.tasks import Task, task_of
from howdah.data import modelfiles
from howdah.data.clean import clean_pair, clean_text
from howdah.data.family import IMAGE_FILES, TOKENIZER_FILES
from howdah.data.inputs import AnyEncoder, encoder_of_model
from howdah.errors import ModelError, UsageError
from training.data.planner import pad_multiple, padded_length
from training.evaluation.metrics import scores_of, softmax
from training.model.pretrained import label_names_of, load_base
from training.process import env
from training.process.quiet import starting_tensorflow
from training.serving.export import INFO, resolve_export

__all__ = [
    "EXPORT_PATTERNS", "FRAMEWORKS", "ServedModel", "choose_framework", "open_model",
]  # fmt: skip

FRAMEWORKS = ("torch", "tensorflow")
EXPORT_PATTERNS = ["config.json", "model*.safetensors*", *TOKENIZER_FILES, *IMAGE_FILES, INFO]

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
    """From howdah.json; for a foreign model `sha256:` and the hash of its files."""
    max_length: int
    """Texts are truncated to so many tokens."""
    clean: CleanOptions
    """The cleaning of the training data; all off for a foreign model."""
    columns: Columns
    """The columns that the training texts were made from."""
    encoder: AnyEncoder
    gpu: bool
    """Whether it runs on a GPU."""
    forward: Forward
    """(ids_BT int32, mask_BT int32) -> logits_BC float32, without dropout; of images pixels uint8
    [B, values] in place of the ids."""
    positions: int
    """The model's positions: no batch is wider."""
    kind: InputKind = "text"
    """What it classifies."""
    task: Task = "single_label"
    """What it predicts of a row; `scores` are probabilities, of a regression its numbers."""
    pairs: bool = False
    """Texts are pairs, joined (howdah/data/clean.py)."""

    def require(self, kind: InputKind, *, where: str, remedy: str) -> None:
        """Refuse a model of another kind of rows.

        Raises:
            UsageError: it classifies something else.
        """
        if self.kind != kind:
            raise UsageError(
                f"the model classifies {self.kind}s, not {kind}s",
                where=f"{where}: {self.path}",
                expected=f"a model of {kind}s",
                got=f"a model of {self.kind}s",
                remedy=remedy,
            )

    def require_labels(self, *, where: str, remedy: str) -> None:
        """Refuse a model that does not predict one label of one text.

        Raises:
            UsageError: it predicts something else.
        """
        if self.task != "single_label" or self.pairs:
            raise UsageError(
                "the model does not predict one label of one text",
                where=f"{where}: {self.path}",
                expected="task single_label, of single texts",
                got=self.task + (", of pairs" if self.pairs else ""),
                remedy=remedy,
            )

    def image_scores(self, pixels: Sequence[np.ndarray]) -> np.ndarray:
        """Probabilities float32 [N, C] of decoded images (ImageEncoder.decode), in their order."""
        scores_NC = np.zeros((len(pixels), len(self.labels)), np.float32)
        most = max(1, _BATCH_TOKENS // self.positions)
        for start in range(0, len(pixels), most):
            images = np.stack(pixels[start : start + most])
            mask_BT = np.ones((len(images), self.positions), np.int32)
            scores_NC[start : start + most] = softmax(self.forward(images, mask_BT))
        return scores_NC

    def clean_text(self, text: str) -> str:
        """The text, or both of a pair, cleaned as by the ETL."""
        return (clean_pair if self.pairs else clean_text)(text, self.clean)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids of cleaned texts, truncated to `max_length`: an int array [T] of each."""
        return self.encoder.encode_rows(list(texts), self.max_length, pairs=self.pairs)

    def scores(self, texts: Sequence[str]) -> np.ndarray:
        """`scores_of` the task, float32 [N, C], of cleaned texts, in their order."""
        return self.scores_of_ids(self.encode(texts) if texts else [])

    def scores_of_ids(self, ids_N: Sequence[np.ndarray]) -> np.ndarray:
        """`scores_of` the task, float32 [N, C], of encoded texts, in their order.

        Rows of similar length share a batch, which keeps padding small.
        """
        scores_NC = np.zeros((len(ids_N), len(self.labels)), np.float32)
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
            scores_NC[rows] = scores_of(self.task, self.forward(ids_BT, mask_BT))
        return scores_NC


def open_model(
    path: str, *, framework: str | None = None, threads: int | None = None
) -> ServedModel:
    """Open an export, a run directory with one, or any classifier's directory of a known family.

    Args:
        path: on any storage.
        framework: tensorflow or torch; None: the one that it was trained with, if installed.
        threads: compute threads; None: all cores.
    Raises:
        ModelError: no export, no classifier in it, or no framework installed.
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
            remedy="give a model exported by `howdah train` or `howdah export`",
        )
    chosen = choose_framework(framework, trained_with=info.get("framework"))
    env.prepare(chosen, threads=threads)
    base = load_base(local, label_names=labels)
    missing = [name for name in base.family.classifier_names if name not in base.weights]
    if missing:
        raise ModelError(
            "the model has no trained classifier",
            where=directory,
            expected=", ".join(missing),
            remedy="give an export, not a base model",
        )
    if chosen not in base.family.frameworks:
        raise ModelError(
            f"a {base.family.title} does not run with {chosen}",
            where=directory,
            expected=" or ".join(base.family.frameworks),
            got=chosen,
            remedy=f"leave --framework out, or install {base.family.frameworks[0]}",
        )
    limit = base.family.longest(base.config)
    encoder = encoder_of_model(base.config, base.tokenizer_files, local)
    if info.get("tokenizer_hash", encoder.hash) != encoder.hash:
        part = {"text": "tokenizer", "image": "image processor"}[base.family.kind]
        raise ModelError(
            f"the export's {part} is not the one that the model was trained with",
            where=directory,
            expected=info["tokenizer_hash"],
            got=encoder.hash,
            remedy="restore the export's files, or export the run again",
        )
    pairs = bool(info.get("pairs", False))
    forward, gpu = _forward(
        chosen,
        base.config,
        base.weights,
        len(labels),
        first_type_ends=encoder.first_type_ends if pairs else None,
    )
    return ServedModel(
        path=path,
        framework=chosen,
        labels=labels,
        run_id=str(info.get("run_id") or f"sha256:{base.hash}"),
        max_length=min(int(info.get("max_length", limit)), limit),
        # A cleaning step that the export does not name was not applied to its training data.
        clean=CleanOptions(
            **{name: info.get("clean", {}).get(name, False) for name in CleanOptions.model_fields}
        ),
        columns=Columns(**info.get("columns", {})),
        encoder=encoder,
        gpu=gpu,
        forward=forward,
        positions=limit,
        kind=base.family.kind,
        task=task_of(config.get("problem_type")),
        pairs=pairs,
    )


def choose_framework(requested: str | None, *, trained_with: str | None) -> str:
    """The framework to run a model with: the requested one, else the one that is loaded in this
    process, else `trained_with`, else any.

    Raises:
        UsageError: an unknown framework, or one that is not installed.
        ModelError: no framework is installed.
    """
    if requested is not None and (requested not in FRAMEWORKS or not _installed(requested)):
        raise UsageError(
            "that framework is not installed",
            expected=" or ".join(name for name in FRAMEWORKS if _installed(name))
            or "none installed",
            got=requested,
        )
    loaded = [name for name in FRAMEWORKS if name in sys.modules]
    for name in (requested, *loaded, trained_with, *FRAMEWORKS):
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
    """Let TensorFlow allocate GPU memory as needed, so that several processes can share a GPU.

    By default the first process allocates all of it. Tested with simulated devices, not on a GPU.

    Args:
        devices: `tf.config`.
    """
    gpus = devices.list_physical_devices("GPU")
    for gpu in gpus:
        # After TensorFlow's start it cannot be changed: a caller's own program has decided.
        with contextlib.suppress(RuntimeError):
            devices.experimental.set_memory_growth(gpu, True)


def _forward(
    framework: str,
    config: dict,
    weights: dict[str, np.ndarray],
    classes: int,
    *,
    first_type_ends: int | None,
) -> tuple[Forward, bool]:
    """The forward pass, and whether it runs on a GPU."""
    # Full precision: scores must not depend on the machine.
    settings = {
        "num_labels": classes,
        "training": TrainingSection(framework=framework, precision="fp32"),
        "model": ModelSection(),
        "first_type_ends": first_type_ends,
    }
    build = {"torch": _forward_torch, "tensorflow": _forward_tensorflow}[framework]
    return build(config, weights, settings)


def _forward_torch(config: dict, weights: dict, settings: dict) -> tuple[Forward, bool]:
    import torch

    from training.model import forward_torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = forward_torch.build(config, weights, device=device, **settings)
    return forward_torch.forward_fn(net), device == "cuda"


def _forward_tensorflow(config: dict, weights: dict, settings: dict) -> tuple[Forward, bool]:
    with starting_tensorflow():
        import tensorflow as tf

        from training.model import forward_tf

        _grow_memory(tf.config)
        tf.constant(0)  # starts the runtime, which looks for GPUs and logs what it misses
        gpu = bool(tf.config.list_logical_devices("GPU"))
    return forward_tf.forward_fn(forward_tf.build(config, weights, **settings)), gpu
