"""The formats of an export: what each adds to the directory, how it is written and checked.

`hf` is the Hugging Face directory, which every export has. model.onnx is added wherever the package
`onnx` is installed: it is only the graph, so it costs almost nothing. The other formats are written
only if export.formats names them, and each is compared with the model's own logits before the
export gets its name.
"""

from __future__ import annotations

import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from howdah import storage
from howdah.config.splits import TEST, TRAIN, VALIDATION
from howdah.config.tasks import Task
from howdah.core.child import Child
from howdah.data.family import family_of
from howdah.data.manifest import Dataset
from howdah.data.splits.shards import ShardSet
from howdah.errors import ModelError, UsageError
from howdah.models.decision import Decision
from howdah.models.export import int8_onnx, onnx_graph
from howdah.models.export.quantised_onnx import Quantised
from howdah.models.forward import forward_numpy, forward_onnx
from howdah.models.registry import EXPORT_FOLDERS
from howdah.models.weights.pretrained import WEIGHTS
from howdah.process import isolation

(SAVED_MODEL,) = EXPORT_FOLDERS
_EXACT = 1e-5
"""Largest allowed difference of a float32 logit from the model's: absolute for logits up to 1,
relative for larger ones."""
_SAMPLES = 400
_CALIBRATED = 4
"""onnx-int8 takes its scales from one in this many sample rows, and is compared on the others."""
_NEAR = 0.01
"""Two numbers of a regression count as equal below this difference."""
_PROBES = ((1, 1), (1, 2), (3, 7), (2, 33), (1, 96))
"""Rows and tokens of the batches that formats are checked with: odd ones, and each dimension 1."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """A format beside the Hugging Face directory."""

    file: str
    """File or directory in the export."""
    packages: tuple[str, ...]
    """Packages that writing and checking the format needs."""
    exact: bool
    """True if its logits equal the model's. Otherwise the share of equal labels is shown."""


_ONNX = ("onnx", "onnxruntime")
_FILES = onnx_graph.FILES
FORMATS: dict[str, Format] = {
    "hf": Format(file=WEIGHTS, packages=(), exact=True),
    "onnx": Format(file=_FILES["onnx"], packages=_ONNX, exact=True),
    "onnx-w8": Format(file=_FILES["onnx-w8"], packages=_ONNX, exact=False),
    "onnx-int8": Format(file=_FILES["onnx-int8"], packages=_ONNX, exact=False),
    "savedmodel": Format(file=SAVED_MODEL, packages=("tensorflow",), exact=True),
}
"""Formats by their name in export.formats."""


@dataclass(frozen=True, kw_only=True)
class ModelToExport:
    """The model that is written."""

    config: Mapping[str, Any]
    """config.json, defaults filled in."""
    weights: Mapping[str, np.ndarray]
    """float32 by Hugging Face's torch names."""
    first_type_ends: int | None
    metadata: Mapping[str, str]
    """Entries for the ONNX model's metadata."""
    task: Task = "single_label"
    samples: Sequence[np.ndarray] = ()
    """Token ids of real rows that inexact formats are calibrated and compared on; the probes if it
    is empty."""
    decision: Decision = field(default_factory=Decision)
    """The export's decision; two formats are compared by the answers that it produces."""
    labels: Sequence[str] = ()
    """C names in the order of the classifier's rows."""


def require(names: Iterable[str], config: Mapping[str, Any] | None, *, where: str) -> list[str]:
    """Refuse formats that cannot be written here, before anything is written. Returns the names in
    the table's order, each once.

    Args:
        config: config.json, defaults filled in; None: it is not known yet.
    Raises:
        UsageError: formats are unknown, or their packages are not installed; it names all of them.
        ModelError: the model's family does not support a format.
    """
    requested = set(names)
    problems = [f"{name}: no such format" for name in sorted(requested - set(FORMATS))]
    for name in sorted(requested & set(FORMATS)):
        missing = [p for p in FORMATS[name].packages if importlib.util.find_spec(p) is None]
        if missing:
            problems.append(f"{name}: {', '.join(missing)} not installed")
    if problems:
        raise UsageError(
            "these formats cannot be written here",
            where=where,
            got="; ".join(problems),
            remedy=f"choose from {', '.join(FORMATS)}, or install the packages (`pip install onnx"
            " onnxruntime`, or howdah[tensorflow])",
        )
    if config is not None and requested - {"hf"}:
        family = family_of(config, where=where)
        if family.kind != "text":
            raise ModelError(
                f"a {family.title} is exported only as a Hugging Face directory",
                where=where,
                expected="hf",
                got=", ".join(sorted(requested)),
            )
    return [name for name in FORMATS if name in requested]


def sample_rows(dataset: Dataset, names: Iterable[str]) -> list[np.ndarray]:
    """Token ids of the rows that inexact formats are compared on, spread over the first split that
    has rows: validation, test, train. Returns [] without reading if all formats are exact."""
    if all(FORMATS[name].exact for name in names):
        return []
    splits = [split for split in (VALIDATION, TEST, TRAIN) if dataset.manifest.rows(split)]
    shards = ShardSet(dataset, splits[0])
    ends = np.cumsum([len(lengths) for lengths in shards.lengths])  # int64[S]
    row_numbers = np.arange(0, ends[-1], max(1, ends[-1] // _SAMPLES))[:_SAMPLES]  # numbers of rows
    shard = np.searchsorted(ends, row_numbers, side="right")
    row = row_numbers - np.concatenate([[0], ends])[shard]
    places = zip(shard.tolist(), row.tolist(), strict=True)
    rows = [np.array(shards.example(*place).input_ids, np.int32) for place in places]
    shards.release()
    return rows


def write(
    names: Sequence[str], directory: str, source: ModelToExport, *, progress: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Write formats into a local export that has the Hugging Face files and model.onnx, and check
    each. Returns {name: its entry in howdah.json} for all of them but `hf`.

    Raises:
        ModelError: a format's logits differ from the model's, or its writer failed.
    """
    probes = _probes(source)
    entries: dict[str, dict[str, Any]] = {}
    expected = [
        forward_numpy.logits(
            source.config, source.weights, ids, mask, first_type_ends=source.first_type_ends
        )
        for ids, mask in probes
    ]
    for name in names:
        if name == "hf":
            continue
        form = FORMATS[name]
        written = _WRITERS[name](directory, source, probes, progress)
        if form.exact:
            furthest = _furthest(written, expected)
            if not furthest <= _EXACT:  # NaN too
                raise ModelError(
                    f"the logits of the format {name} differ from the model's",
                    where=directory,
                    got=f"a difference of {furthest:.1e}, more than {_EXACT}",
                    remedy="leave the format out, and report this as a defect",
                )
            progress(f"{form.file}: written; its logits differ by at most {furthest:.1e}")
            entries[name] = {"file": form.file, "furthest": furthest}
            continue
        storage.write_whole(os.path.join(directory, form.file), written)
        rows = _compared(name, directory, source)
        entries[name] = {"file": form.file, **rows}
        progress(
            f"{form.file}: {len(written) / 2**20:,.1f} MiB, {rows['agreement']:.2%} of"
            f" {rows['rows']} rows keep their label, scores change by at most"
            f" {rows['furthest_score']:.3f}"
        )
    return entries


# --------------------------------------------------------------------------------- the writers
Batches = list[tuple[np.ndarray, np.ndarray]]


def _onnx(
    directory: str, source: ModelToExport, probes: Batches, progress: Any
) -> list[np.ndarray]:
    """Only read model.onnx, which exists already: by its path, as any user of onnxruntime does."""
    forward = _opened(os.path.join(directory, onnx_graph.FILE))
    return [forward(ids, mask) for ids, mask in probes]


def _onnx_w8(directory: str, source: ModelToExport, probes: Batches, progress: Any) -> bytes:
    return _serialised(Quantised(source.weights), source)


def _onnx_int8(directory: str, source: ModelToExport, probes: Batches, progress: Any) -> bytes:
    import onnx

    graph = onnx.load(os.path.join(directory, onnx_graph.FILE), load_external_data=False)
    rows = _rows(source)[::_CALIBRATED]
    progress(f"onnx-int8: scales and rounding from the inputs of {len(rows)} rows")
    skip = family_of(source.config).classifier_layers
    inputs = int8_onnx.calibrate(graph, rows, folder=directory, skip=skip)
    return _serialised(int8_onnx.Int8(source.weights, inputs), source)


def _serialised(graph: forward_onnx.Graph, source: ModelToExport) -> bytes:
    model = forward_onnx.assembled(graph, source.config, source.first_type_ends, source.metadata)
    return model.SerializeToString()


def _savedmodel(
    directory: str, source: ModelToExport, probes: Batches, progress: Any
) -> list[np.ndarray]:
    progress("writing saved_model in a TensorFlow process")
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="howdah-savedmodel-") as place:
        probes_path = os.path.join(place, "probes.npz")
        logits_path = os.path.join(place, "logits.npz")
        arrays = {f"ids_{n}": ids for n, (ids, _) in enumerate(probes)}
        np.savez(probes_path, **arrays, **{f"mask_{n}": mask for n, (_, mask) in enumerate(probes)})
        environment = isolation.environment() | {"CUDA_VISIBLE_DEVICES": ""}
        argv = isolation.module(
            "howdah.models.export.savedmodel_tf", directory, probes_path, logits_path
        )
        with Child(argv, env=environment, on_line=lines.append) as child:
            code = child.wait()
        if code:
            raise ModelError(
                "TensorFlow did not write the SavedModel",
                where=directory,
                got=f"exit code {code}: " + (" | ".join(lines[-3:]) or "no output"),
            )
        logits = np.load(logits_path)
        return [logits[f"logits_{number}"] for number in range(len(probes))]


_WRITERS: dict[str, Callable[..., list[np.ndarray] | bytes]] = {
    "onnx": _onnx,
    "onnx-w8": _onnx_w8,
    "onnx-int8": _onnx_int8,
    "savedmodel": _savedmodel,
}
"""Functions that return an exact format's logits for the probes, once it is written, and the bytes
of the file of another one."""


# -------------------------------------------------------------------------------- the checking
def _probes(source: ModelToExport) -> Batches:
    """Batches of random ids, whose rows have different lengths."""
    family = family_of(source.config)
    longest = family.longest(source.config)
    words = int(source.config[family.keys.vocabulary])
    rng = np.random.default_rng(11)
    batches = []
    for rows, tokens in _PROBES:
        width = min(tokens, longest)
        ids_BT = rng.integers(0, words, (rows, width)).astype(np.int32)
        lengths_B1 = rng.integers(1, width + 1, (rows, 1))
        lengths_B1[0] = width
        mask_BT = (np.arange(width) < lengths_B1).astype(np.int32)
        if source.first_type_ends is not None and width > 2:
            ids_BT[:, width // 3] = source.first_type_ends
        batches.append((ids_BT, mask_BT))
    return batches


def _opened(path: str) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    from howdah.models.opened.onnx_session import open_session

    return open_session(path, threads=1, where=path)


def _furthest(logits: Sequence[np.ndarray], expected: Sequence[np.ndarray]) -> float:
    """The largest difference, relative to the batch's largest logit where that is above 1."""
    return max(
        float(np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max()))
        for ours, theirs in zip(logits, expected, strict=True)
    )


def _compared(name: str, directory: str, source: ModelToExport) -> dict[str, Any]:
    """Compare an inexact format with model.onnx, row by row."""
    rows = _rows(source)
    if name == "onnx-int8":  # the others have set its scales; a single row has to do both
        rows = [row for number, row in enumerate(rows) if number % _CALIBRATED] or rows
    exact = _opened(os.path.join(directory, onnx_graph.FILE))
    inexact = _opened(os.path.join(directory, FORMATS[name].file))
    ours, theirs = (_scores(source, forward, rows) for forward in (exact, inexact))
    same = source.decision.rule(source.task, source.labels).agree(ours, theirs, near=_NEAR)
    return {
        "agreement": float(same.mean()),
        "furthest_score": float(np.abs(ours - theirs).max()),
        "rows": len(rows),
    }


def _rows(source: ModelToExport) -> list[np.ndarray]:
    """The export's sample rows; without any, those of the probes."""
    return list(source.samples) or [
        ids[row, : mask[row].sum()] for ids, mask in _probes(source) for row in range(len(ids))
    ]


def _scores(source: ModelToExport, forward: Callable, rows: Sequence[np.ndarray]) -> np.ndarray:
    logits = [forward(np.asarray(row)[None], np.ones((1, len(row)), np.int32))[0] for row in rows]
    return source.decision.scores(source.task, np.stack(logits))
