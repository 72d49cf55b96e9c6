"""Opens an export to classify texts or images with: cleaning, encoder, forward pass.

All code that scores rows uses it, so that texts are cleaned, truncated and encoded as the training
data was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from howdah import storage
from howdah.config.data import CleanOptions, Columns, InputKind
from howdah.config.tasks import Task
from howdah.data import modelfiles
from howdah.data.clean import PAIR, clean_pair, clean_text
from howdah.data.encode import most_characters
from howdah.data.family import IMAGE_FILES, TOKENIZER_FILES
from howdah.data.inputs import AnyEncoder, encoder_of_model
from howdah.data.splits.planner import pad_multiple, padded_length
from howdah.errors import ModelError
from howdah.models import integrity
from howdah.models.decision import Answer, Decision, Rule
from howdah.models.export import onnx_graph
from howdah.models.opened.runtimes import (
    Forward,
    forward_of,
    prepare,
    serving_framework,
)
from howdah.models.registry import EXPORT_INFO as INFO
from howdah.models.version import OF_FILES, Version, open_version, require_kind, require_one_label
from howdah.models.weights.pretrained import load_base

EXPORT_PATTERNS = ["config.json", "model*.safetensors*", onnx_graph.FILE, INFO]
EXPORT_PATTERNS += [*TOKENIZER_FILES, *IMAGE_FILES]

_RAW_CHARACTERS = 8
"""Raw characters that are cleaned per character that can be encoded; most may be markup."""
_BATCH_TOKENS = {"cpu": 1024, "gpu": 8192}
"""Padded tokens of a batch. More do not fit a CPU's cache (docs/decisions/exports.md)."""


@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """An export in memory, ready to classify."""

    path: str
    """Address of the model as the user wrote it."""
    framework: str
    labels: list[str]
    """Label names by number."""
    run_id: str
    """Run id from howdah.json; for a third-party model, `sha256:` and the hash of its files."""
    max_length: int
    """Number of tokens that texts are truncated to."""
    clean: CleanOptions
    """The cleaning of the training data; all steps are off for a third-party model."""
    columns: Columns
    """The columns that the training texts were made from."""
    encoder: AnyEncoder
    gpu: bool
    """True if it runs on a GPU."""
    forward: Forward
    """(ids_BT int32, mask_BT int32) -> logits_BC float32, without dropout; images are pixels uint8
    [B, values] in place of the ids."""
    positions: int
    """Number of positions of the model, which is the maximum width of a batch."""
    kind: InputKind = "text"
    """Kind of rows that it classifies."""
    task: Task = "single_label"
    """What it predicts for a row; `scores` are probabilities, or the numbers of a regression."""
    pairs: bool = False
    """True if texts are pairs, joined (data/clean.py)."""
    decision: Decision = field(default_factory=Decision)
    """The decision in the export (`howdah model threshold`); `scores` include its temperature."""
    own_width: bool = False
    """True if a batch holds only rows of one padded width, so that a row's score does not depend on
    the other rows."""

    @property
    def temperature(self) -> float:
        """Divisor of the logits; 1 leaves them unchanged."""
        return self.decision.temperature

    @property
    def reject_below(self) -> float | None:
        """A row whose label's score is lower gets no label; None: every row gets one."""
        return self.decision.reject_below

    @cached_property
    def rule(self) -> Rule:
        """The decision for the model's labels: it returns answers and margins of many rows."""
        return self.decision.rule(self.task, self.labels)

    def decided(self, scores_C: np.ndarray) -> Answer:
        """The prediction for a row with these `scores`: its label (None: rejected), its labels, or
        its number."""
        return self.rule.answers(np.asarray(scores_C)[None])[0]

    @property
    def run_by(self) -> str:
        """What runs it, for a line to the user: "onnxruntime on the CPU"."""
        name = "onnxruntime" if self.framework in onnx_graph.FILES else self.framework
        return f"{name} on the {'GPU' if self.gpu else 'CPU'}"

    def require(self, kind: InputKind, *, where: str, remedy: str) -> None:
        """Refuse a model that classifies another kind of rows.

        Raises:
            UsageError: it classifies something else.
        """
        require_kind(self.kind, kind, where=f"{where}: {self.path}", remedy=remedy)

    def require_labels(self, *, where: str, remedy: str) -> None:
        """Refuse a model that does not predict a single label of a single text.

        Raises:
            UsageError: it predicts something else.
        """
        where = f"{where}: {self.path}"
        require_one_label(self.task, pairs=self.pairs, where=where, remedy=remedy)

    def image_scores(self, pixels: Sequence[np.ndarray]) -> np.ndarray:
        """Probabilities float32 [N, C] of decoded images (ImageEncoder.decode), in their order."""
        scores_NC = np.zeros((len(pixels), len(self.labels)), np.float32)
        most = max(1, self._batch_tokens // self.positions)
        for start in range(0, len(pixels), most):
            images = np.stack(pixels[start : start + most])
            mask_BT = np.ones((len(images), self.positions), np.int32)
            logits_BC = self.forward(images, mask_BT)
            scores_NC[start : start + most] = self.decision.scores(self.task, logits_BC)
        return scores_NC

    def clean_text(self, text: str) -> str:
        """The text, or both texts of a pair, cleaned as the ETL cleans them.

        Only the beginning of a very long text is cleaned: eight times the characters that can be
        encoded of it.
        """
        most = _RAW_CHARACTERS * most_characters(self.max_length)
        if len(text) > most:
            sides = text.split(PAIR, 1) if self.pairs else [text]
            text = PAIR.join(side[:most] for side in sides)
        return (clean_pair if self.pairs else clean_text)(text, self.clean)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Token ids of cleaned texts, truncated to `max_length`: an int array [T] for each."""
        return self.encoder.encode_rows(list(texts), self.max_length, pairs=self.pairs)

    def scores(self, texts: Sequence[str]) -> np.ndarray:
        """Scores float32 [N, C] of cleaned texts, in their order: probabilities, or the numbers of
        a regression."""
        return self.scores_of_ids(self.encode(texts) if texts else [])

    def scores_of_ids(self, ids_N: Sequence[np.ndarray]) -> np.ndarray:
        """`scores` of encoded texts, in their order.

        Rows of similar length share a batch, which keeps padding small.
        """
        scores_NC = np.zeros((len(ids_N), len(self.labels)), np.float32)
        order = np.argsort([-len(ids) for ids in ids_N], kind="stable")
        start = 0
        while start < len(order):
            width = self._width(ids_N[order[start]])
            rows = order[start : start + max(1, self._batch_tokens // width)]
            if self.own_width:
                rows = [row for row in rows if self._width(ids_N[row]) == width]
            start += len(rows)
            ids_BT = np.full((len(rows), width), self.encoder.pad_id, np.int32)
            mask_BT = np.zeros((len(rows), width), np.int32)
            for at, row in enumerate(rows):
                ids_BT[at, : len(ids_N[row])] = ids_N[row]
                mask_BT[at, : len(ids_N[row])] = 1
            scores_NC[rows] = self.decision.scores(self.task, self.forward(ids_BT, mask_BT))
        return scores_NC

    def _width(self, ids: np.ndarray) -> int:
        """The width of a batch in which this is the longest row."""
        return padded_length(len(ids), pad_multiple(self.gpu), self.positions)

    @property
    def _batch_tokens(self) -> int:
        return _BATCH_TOKENS["gpu" if self.gpu else "cpu"]


def patterns_of(framework: str | None) -> list[str]:
    """Patterns of the files of an export that are needed to run it.

    Args:
        framework: one of RUNTIMES; None: any that needs only the usual files.
    """
    graph_file = onnx_graph.FILES.get(framework or "")
    return list(dict.fromkeys([*EXPORT_PATTERNS, *([graph_file] if graph_file else [])]))


def open_model(
    path: str,
    *,
    framework: str | None = None,
    threads: int | None = None,
    files: integrity.ManifestFiles | None = None,
) -> ServedModel:
    """Open an export, a run directory with one, or any classifier's directory of a known family.

    Args:
        path: address of the model, on any storage.
        framework: tensorflow, torch, or onnx (onnxruntime, with no framework imported); None: see
            `serving_framework`.
        threads: compute threads; None: all cores.
        files: `files` of a published version's manifest, if `path` has copies of its files; None:
            the manifest in `path` is read, if there is one.
    Raises:
        ModelError: there is no export, it has no classifier, or nothing is installed to run it; or
            the files of a published version differ from its manifest.
        UsageError: `framework` is unknown, or not installed.
    """
    version = open_version(path)
    directory = version.path
    runtime = serving_framework(version, framework)
    patterns = patterns_of(runtime)
    local = modelfiles.fetch(directory, patterns=patterns)
    files = files or integrity.files_of(directory)
    with integrity.unchanged(directory, files, local, patterns):
        return _opened(version, local, runtime, threads)


def _opened(version: Version, local: str, runtime: str, threads: int | None) -> ServedModel:
    """The model in `local`, which is a copy of the version's directory or that directory."""
    directory = version.path
    info_path = storage.join(directory, INFO)
    copied = replace(version, path=local)
    info, labels, task = copied.info, list(copied.labels), copied.task
    count = prepare(runtime, threads)
    # Onnxruntime reads the weights of an export's graph itself.
    unread = onnx_graph.entry(info, runtime) is not None
    base = load_base(local, label_names=labels, weights=not unread)
    missing = [name for name in base.family.classifier_names if name not in base.weights]
    if missing and not unread:
        raise ModelError(
            "the model has no trained classifier",
            where=directory,
            expected=", ".join(missing),
            remedy="give an export, not a base model",
        )
    limit = base.family.longest(base.config)
    encoder = encoder_of_model(base.config, base.tokenizer_files, local)
    if info.get("tokenizer_hash", encoder.hash) != encoder.hash:
        part = {"text": "tokenizer", "image": "image processor"}[base.family.kind]
        raise ModelError(
            f"the export's {part} is not the one that the model was trained with",
            where=directory,
            got=f"hash {encoder.hash} instead of {info['tokenizer_hash']}",
            remedy="restore the export's files, or export the run again",
        )
    pairs = copied.pairs
    decision = Decision.of(info, labels, task, where=info_path)
    ends = encoder.first_type_ends if pairs else None
    settings = {"classes": len(labels), "threads": count, "first_type_ends": ends}
    forward, gpu = forward_of(runtime, base, info, local=local, where=directory, **settings)
    cleaned = info.get("clean") or {}
    return ServedModel(
        path=version.address,
        framework=runtime,
        labels=labels,
        run_id=str(info.get("run_id") or OF_FILES + base.hash),
        max_length=min(info.get("max_length") or limit, limit),
        # A cleaning step that the export does not name was not applied to its training data.
        clean=CleanOptions(**{name: bool(cleaned.get(name)) for name in CleanOptions.model_fields}),
        columns=Columns(**(info.get("columns") or {})),
        encoder=encoder,
        gpu=gpu,
        forward=forward,
        positions=limit,
        kind=base.family.kind,
        task=task,
        pairs=pairs,
        decision=decision,
        own_width=runtime in onnx_graph.FILES,
    )
