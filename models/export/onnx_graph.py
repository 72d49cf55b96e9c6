"""An export's model.onnx: only the graph; its weights are in model.safetensors beside it.

The graph's offsets and lengths fit one layout of that file. howdah.json holds the hash of the
file's header, and a graph beside a file with another layout is refused.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from howdah import storage
from howdah.data.family import family_of
from howdah.data.inputs import encoder_of_model
from howdah.errors import ModelError
from howdah.models.forward import forward_onnx
from howdah.models.forward.forward_onnx import Place
from howdah.models.weights.pretrained import WEIGHTS
from howdah.models.weights.tensors import read_header

if TYPE_CHECKING:
    from howdah.models.export.run_info import RunInfo

FILE = "model.onnx"
FILES = {"onnx": FILE, "onnx-w8": "model_w8.onnx", "onnx-int8": "model_int8.onnx"}
"""{format: its file in an export}."""
_HEADER = "weights_header_sha256"


def of_export(
    weights: bytes,
    config: Mapping[str, Any],
    tokenizer_files: Mapping[str, bytes],
    *,
    label_names: Sequence[str],
    info: RunInfo,
    progress: Callable[[str], None],
) -> tuple[bytes, dict[str, Any]] | None:
    """(the serialised graph of an export, its entry in howdah.json); None if the model's family has
    no graph, or the package `onnx` is not installed.

    Args:
        weights: the bytes of model.safetensors.
        config: config.json, defaults filled in.
        label_names: in the order of the classifier's rows.
        progress: called with a line if the package is missing.
    """
    family = family_of(config)
    if family.forward not in forward_onnx.FORWARD_PASSES:
        return None
    if importlib.util.find_spec("onnx") is None:
        progress(f"no {FILE}: the package `onnx` is not installed (pip install onnx)")
        return None
    model = forward_onnx.build(
        config,
        _places(weights),
        weights_file=WEIGHTS,
        first_type_ends=first_type_ends(config, tokenizer_files, info),
        metadata=metadata(info, label_names),
    )
    described = {"file": FILE, _HEADER: header_hash(weights), "opset": forward_onnx.OPSET}
    return model.SerializeToString(), described


def first_type_ends(
    config: Mapping[str, Any], tokenizer_files: Mapping[str, bytes], info: RunInfo
) -> int | None:
    """`Encoder.first_type_ends` for a model of pairs, else None."""
    if not info.pairs:
        return None
    return encoder_of_model(dict(config), dict(tokenizer_files), "export").first_type_ends


def metadata(info: RunInfo, label_names: Sequence[str]) -> dict[str, str]:
    """Metadata of a graph: all that a program needs to know beside the tokenizer."""
    return {
        "run_id": info.run_id,
        "labels": json.dumps(list(label_names), ensure_ascii=False),
        "max_length": str(info.max_length),
        "clean": json.dumps(info.clean),
        "task": info.task,
        "pairs": json.dumps(info.pairs),
    }


def entry(info: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """The entry of a format's graph in howdah.json; None if the export has none."""
    formats = info.get("formats")
    return formats.get(name) if name in FILES and isinstance(formats, Mapping) else None


def of_file(
    directory: str, info: Mapping[str, Any], name: str, config: Mapping[str, Any], *, where: str
) -> bytes:
    """The graph in a local export, after a check that the weights have the layout that it was
    written for.

    Args:
        info: howdah.json, which has an entry for the graph.
        config: config.json, defaults filled in.
        where: the export, for messages.
    Raises:
        ModelError: the file is missing, the weights' file has another layout or another size, or
            config.json describes a model of other sizes.
    """
    again = "`howdah export` writes the run's export again"
    described, path = entry(info, name) or {}, storage.join(directory, FILES[name])
    if not storage.exists(path):
        raise ModelError(
            f"the export has no {FILES[name]}, which howdah.json lists", where=where, remedy=again
        )
    if _HEADER not in described:  # the graph contains its weights
        return storage.read_bytes(path)
    with storage.open_read(storage.join(directory, WEIGHTS)) as file:
        # The bytes need not be a safetensors file: the hash would differ then.
        length = int.from_bytes(file.read(8), "little")
        header = length.to_bytes(8, "little") + file.read(min(length, 2**27))
    got = header_hash(header)
    if got != described.get(_HEADER):
        raise ModelError(
            f"{WEIGHTS} is not the file that {FILE} points into",
            where=where,
            got=f"a header with the hash {got} instead of {described.get(_HEADER)}",
            remedy=f"restore the export's files, or {again}",
        )
    size = storage.size(storage.join(directory, WEIGHTS))
    places = _places(header)
    _require_sizes(places, config, where)
    ends = [place.offset + place.length for place in places.values()]
    if size != max(ends, default=len(header)):
        raise ModelError(
            f"{WEIGHTS} does not have the size in its header; copy the file again",
            where=where,
            expected=f"{max(ends):,} bytes",
            got=f"{size:,}",
        )
    return storage.read_bytes(path)


def _require_sizes(places: Mapping[str, Place], config: Mapping[str, Any], where: str) -> None:
    """Refuse a config.json that describes another model than the weights: the graph does not read
    it, but lengths and sizes are taken from it.

    Raises:
        ModelError: it names the first tensor that is missing or has another shape.
    """
    family = family_of(config)
    layers = config[family.keys.layers]
    beyond = family.layer_name(layers)
    # Checked before encoder_shapes, which builds as many names as config.json claims layers.
    if layers <= len(places) and not any(name.startswith(beyond) for name in places):
        shapes = family.encoder_shapes(config)
        sizes = {name: tuple(place.shape) for name, place in places.items()}
        wrong = [name for name, shape in shapes.items() if sizes.get(name) != tuple(shape)]
        if not wrong:
            return
        expected = f"{wrong[0]} {tuple(shapes[wrong[0]])}"
        actual = f"{sizes.get(wrong[0], 'none')}"
    else:
        expected, actual = f"{layers:,} layers", "another number"
    raise ModelError(
        f"config.json does not describe the model in {WEIGHTS}",
        where=storage.join(where, "config.json"),
        expected=expected,
        got=actual,
        remedy="restore the export's files, or `howdah export` writes the run's export again",
    )


def in_memory(
    config: Mapping[str, Any], weights: Mapping[str, np.ndarray], *, first_type_ends: int | None
) -> bytes:
    """The graph of a model whose directory has none; the session needs each weight as an array.

    Args:
        config: config.json, defaults filled in.
        weights: float32 arrays by name.
    Raises:
        ModelError: the package `onnx` is not installed, or the family has no graph.
    """
    forward_onnx.require(config)
    if importlib.util.find_spec("onnx") is None:
        raise ModelError(
            f"the model has no {FILE}, and the package `onnx`, which builds it, is not installed",
            remedy="pip install onnx; or run `howdah export` where it is installed; or use"
            " --framework torch",
        )
    places = {
        name: Place(shape=array.shape, offset=0, length=array.nbytes)
        for name, array in weights.items()
    }
    model = forward_onnx.build(
        config, places, weights_file=WEIGHTS, first_type_ends=first_type_ends
    )
    return model.SerializeToString()


def header_hash(weights: bytes) -> str:
    """SHA-256 of a safetensors file's header, 16 hex digits: equal where the layout is."""
    length = int.from_bytes(weights[:8], "little")
    return hashlib.sha256(weights[: 8 + length]).hexdigest()[:16]


def _places(weights: bytes) -> dict[str, Place]:
    tensors, _ = read_header(io.BytesIO(weights))
    begin = 8 + int.from_bytes(weights[:8], "little")
    return {
        name: Place(
            shape=tuple(entry["shape"]),
            offset=begin + entry["data_offsets"][0],
            length=entry["data_offsets"][1] - entry["data_offsets"][0],
        )
        for name, entry in tensors.items()
    }
