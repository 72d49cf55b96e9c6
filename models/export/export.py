"""Export: a Hugging Face directory that `transformers.pipeline` loads, for text-classification or
image-classification.

The bytes are the same for both frameworks: safetensors under Hugging Face's torch names, the
tokenizer's files, a model card filled from the run, and howdah.json with the run's id and how its
texts were cleaned and truncated.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from howdah import storage
from howdah.config.metric_table import metrics_of
from howdah.config.tasks import TASKS, Task
from howdah.data.family import ImageFamily, ModelFamily, family_of
from howdah.errors import AlreadyExists, ModelError
from howdah.models import decided
from howdah.models.decision import KEY
from howdah.models.export import onnx_graph
from howdah.models.export.formats import ModelToExport, require
from howdah.models.export.formats import write as write_formats
from howdah.models.export.run_info import RunInfo
from howdah.models.profile.profile import PROFILE
from howdah.models.registry import EXPORT_INFO as INFO
from howdah.models.weights.pretrained import WEIGHTS
from howdah.storage import commit

FORMAT_VERSION = 1
_CHUNK = 8 * 2**20


def export(
    target: str,
    *,
    weights: Mapping[str, np.ndarray],
    base_config: Mapping[str, Any],
    tokenizer_files: Mapping[str, bytes],
    label_names: Sequence[str],
    run_info: RunInfo | Mapping[str, Any],
    formats: Sequence[str] = (),
    samples: Sequence[np.ndarray] = (),
    profile: bytes | None = None,
    check: Callable[[], None] = lambda: None,
    progress: Callable[[str], None] = lambda line: None,
) -> str:
    """Write the export directory `target`, whole or not at all; returns `target`.

    Args:
        target: directory on any storage. An export of the same run is replaced.
        weights: all tensors under Hugging Face's torch names and layouts.
        base_config: the base's config.json with the run's dropouts.
        label_names: C names in the order of the classifier's rows.
        run_info: written to howdah.json and the model card.
        formats: of howdah.models.export.formats.FORMATS, beside the Hugging Face directory; each is
            checked before the export gets its name. model.onnx need not be named.
        samples: token ids of real rows that inexact formats are calibrated and compared on.
        profile: contents of profile.json (models/profile/profile.py); None: no profile.json.
        check: called before the export gets its name; raises if this process must not write any
            more.
    Raises:
        UsageError: a format cannot be written here.
        ModelError: missing or misshapen tensors, NaN or infinity; a format whose logits are not the
            model's.
        AlreadyExists: `target` holds something else.
    """
    target = target.rstrip("/")  # else the staging directory would lie inside it
    named = require(formats, base_config, where=target)
    info = run_info if isinstance(run_info, RunInfo) else RunInfo(**run_info)
    _check_weights(weights, base_config, label_names, target)
    _check_target(target, info)
    files = _files(weights, base_config, tokenizer_files, label_names, info, progress)
    if profile is not None:
        files[PROFILE] = profile
    decision = decided.keep(files, target, label_names, info.task, progress)
    token = secrets.token_hex(4)
    with commit.stage(f"{target}.new-{token}") as staged:
        if set(named) <= {"hf"}:
            _put(files, staged.path)
        else:
            source = ModelToExport(
                config=base_config,
                weights=weights,
                first_type_ends=onnx_graph.first_type_ends(base_config, tokenizer_files, info),
                metadata=onnx_graph.metadata(info, label_names),
                task=info.task,
                samples=samples,
                decision=decision,
                labels=label_names,
            )
            _put_checked(named, files, source, staged.path, progress)
        check()
        staged.publish(target, aside=f"{target}.old-{token}")
    check()
    _sweep(target)
    return target


def with_decision(
    target: str, entry: Mapping[str, Any] | None, *, profile: bytes | None = None
) -> None:
    """Replace the `decision` in an export's howdah.json and the profile.json that was counted with
    it. The export is written again under another name and renamed: whole or not at all.

    Args:
        entry: the new decision; None removes it.
        profile: the new contents of profile.json; None removes it.
    """
    target = target.rstrip("/")
    token = secrets.token_hex(4)
    with commit.stage(f"{target}.new-{token}") as staged:
        _copy(target, staged.path, leave=(INFO, PROFILE))
        info = storage.read_json(storage.join(target, INFO))
        described = {key: value for key, value in info.items() if key != KEY}
        if entry is not None:
            described[KEY] = entry
        renewed = {INFO: _json(described)} | ({} if profile is None else {PROFILE: profile})
        _put(renewed, staged.path)
        staged.publish(target, aside=f"{target}.old-{token}")
    _sweep(target)


def _copy(source: str, target: str, *, leave: Sequence[str] = ()) -> None:
    """Copy a directory tree, except the files named in `leave` at its top."""
    for entry in storage.list_dir(source):
        target_path = storage.join(target, entry.name)
        if entry.is_dir:
            _copy(entry.path, target_path)
        elif entry.name not in leave:
            with storage.open_read(entry.path) as original, storage.open_write(target_path) as file:
                shutil.copyfileobj(original, file, _CHUNK)


def _sweep(target: str) -> None:
    """Remove the replaced export, and unfinished exports that killed processes have left."""
    leftover = re.compile(re.escape(storage.name(target)) + r"\.(new|old)-[0-9a-f]{8}")
    commit.sweep(
        storage.list_dir(storage.parent(target)),
        lambda entry: entry.is_dir and leftover.fullmatch(entry.name),
    )


def _put(files: Mapping[str, bytes], directory: str) -> None:
    for name, data in files.items():
        with storage.open_write(storage.join(directory, name)) as file:
            file.write(data)


def _put_checked(
    named: Sequence[str],
    files: Mapping[str, bytes],
    source: ModelToExport,
    directory: str,
    progress: Callable[[str], None],
) -> None:
    """Write and check the files and further formats in a local directory, then upload them."""
    with tempfile.TemporaryDirectory(prefix="howdah-export-") as place:
        _put(files, place)
        entries = write_formats(named, place, source, progress=progress)
        described = json.loads(files[INFO])
        formats = described.get("formats", {})
        for name, entry in entries.items():
            formats[name] = {**formats.get(name, {}), **entry}
        storage.write_whole(storage.join(place, INFO), _json({**described, "formats": formats}))
        for at, _, names in os.walk(place):
            for name in names:
                below = os.path.relpath(os.path.join(at, name), place)
                storage.upload(os.path.join(at, name), storage.join(directory, below))


def _check_target(target: str, info: RunInfo) -> None:
    if not storage.exists(target) or (storage.is_dir(target) and not storage.list_dir(target)):
        return
    owner = storage.read_fields(storage.join(target, INFO)).get("run_id")
    if owner != info.run_id:
        raise AlreadyExists(
            "the export's directory is already used for something else",
            where=target,
            expected=f"nothing, or an export of run {info.run_id}",
            got=f"an export of run {owner}" if owner else "not a Howdah export",
        )


def _check_weights(
    weights: Mapping[str, np.ndarray], config: Mapping, label_names: Sequence[str], target: str
) -> None:
    family = family_of(config, where=target)
    expected = family.encoder_shapes(config) | family.head_shapes(config, len(label_names))
    wrong = [
        f"{name} {tuple(weights[name].shape) if name in weights else 'missing'} instead of {shape}"
        for name, shape in expected.items()
        if name not in weights or tuple(weights[name].shape) != tuple(shape)
    ]
    wrong += [f"{name} is not a classifier's tensor" for name in weights if name not in expected]
    if wrong:
        raise ModelError(
            "the weights do not fit the model to export",
            where=target,
            got="; ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""),
        )
    broken = [name for name in expected if not np.isfinite(weights[name]).all()]
    if broken:
        raise ModelError(
            "the weights to export contain NaN or infinity", where=target, got=broken[0]
        )


def _files(
    weights: Mapping[str, np.ndarray],
    base_config: Mapping[str, Any],
    tokenizer_files: Mapping[str, bytes],
    label_names: Sequence[str],
    info: RunInfo,
    progress: Callable[[str], None],
) -> dict[str, bytes]:
    from safetensors.numpy import save

    # transformers requires metadata that names a framework; the layout is PyTorch's.
    data = save(
        {name: np.ascontiguousarray(weights[name], np.float32) for name in sorted(weights)},
        metadata={"format": "pt"},
    )
    sha256 = hashlib.sha256(data).hexdigest()
    described = {"format_version": FORMAT_VERSION, **asdict(info), "labels": list(label_names)}
    described["weights_sha256"] = sha256
    files = dict(tokenizer_files)
    family = family_of(base_config)
    if family.kind == "text":
        files["tokenizer_config.json"] = _tokenizer_config(files, family, info)
    files["config.json"] = _json(_config(base_config, family, label_names, info.task))
    files[WEIGHTS] = data
    graph = onnx_graph.of_export(
        data, base_config, tokenizer_files, label_names=label_names, info=info, progress=progress
    )
    if graph is not None:
        files[onnx_graph.FILE], entry = graph
        described["formats"] = {"onnx": entry}
    card = _model_card(info, family, label_names, sha256, graph=graph is not None)
    files["README.md"] = card.encode("utf-8")
    files[INFO] = _json(described)
    return files


def _tokenizer_config(files: Mapping[str, bytes], family: ModelFamily, info: RunInfo) -> bytes:
    settings = json.loads(files.get("tokenizer_config.json", b"{}"))
    settings.setdefault("tokenizer_class", family.tokenizer_class)
    # A tokenizer of another class could return inputs that the forward pass does not take.
    settings["model_input_names"] = list(family.inputs)
    settings["model_max_length"] = info.max_length
    return _json(settings)


def _config(
    base_config: Mapping[str, Any], family: ModelFamily, label_names: Sequence[str], task: Task
) -> dict[str, Any]:
    dropped = ("_name_or_path", "transformers_version", "torch_dtype", "tie_weights_")
    if isinstance(family, ImageFamily):  # preprocessor_config.json has them
        dropped += family.added
    config = {key: value for key, value in base_config.items() if key not in dropped}
    return config | {
        "architectures": [family.architecture],
        "dtype": "float32",
        "id2label": {str(number): name for number, name in enumerate(label_names)},
        "label2id": {name: number for number, name in enumerate(label_names)},
        "model_type": family.model_type,
        "problem_type": TASKS[task].problem_type,
    }


def _json(value: Mapping) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode("utf-8")


def _model_card(
    info: RunInfo,
    family: ModelFamily,
    label_names: Sequence[str],
    weights_sha256: str,
    *,
    graph: bool,
) -> str:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("howdah.models.export", "."),
        undefined=jinja2.StrictUndefined,
    )
    # A | in a label would end the table's cell.
    environment.globals["cell"] = lambda v: str(v).replace("|", "\\|").replace("\n", " ")
    environment.globals["number"] = lambda v: "undefined" if v is None else f"{v:.4f}"
    return environment.get_template("model_card.md.j2").render(
        info=info,
        family=family,
        labels=list(label_names),
        scalars=metrics_of(info.task),
        cleaning=[name for name, on in info.clean.items() if on],
        weights_sha256=weights_sha256,
        graph=graph,
    )
