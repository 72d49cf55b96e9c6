"""Load a base DistilBERT (a directory, a path on any storage, a hub name) without a framework.

Weights come back as float32 numpy arrays under Hugging Face's torch names, always with the
`distilbert.` prefix, whatever the file used. Only safetensors is read: a pickle can run code.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from howdah import modelfiles, storage
from howdah.errors import ModelError
from training.distilbert import (
    CONFIG_DEFAULTS,
    HEAD_NAMES,
    PREFIX,
    encoder_shapes,
    head_shapes,
    label_names_of,
)

__all__ = ["TOKENIZER_FILES", "BaseModel", "load_base", "read_safetensors"]

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "special_tokens_map.json",
    "added_tokens.json",
)
_WEIGHTS = "model.safetensors"
_WEIGHTS_INDEX = "model.safetensors.index.json"
_PICKLES = (
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "tf_model.h5",
    "flax_model.msgpack",
)
# A hub name is fetched with these alone: no pickle ever reaches the disk.
_PATTERNS = ["config.json", "model*.safetensors", _WEIGHTS_INDEX, *TOKENIZER_FILES, "howdah.json"]
# Heads of other tasks that a pretrained file may carry; they say nothing about a classifier.
_OTHER_HEADS = re.compile(
    r"^(vocab_transform|vocab_layer_norm|vocab_projector|qa_outputs)\.|position_ids$"
)


@dataclass(frozen=True)
class BaseModel:
    """A base model in memory."""

    config: dict
    """config.json, DistilBERT's defaults filled in."""
    weights: dict[str, np.ndarray]
    """float32 arrays by Hugging Face torch name; HEAD_NAMES only where the labels agree."""
    tokenizer_files: dict[str, bytes]
    """The tokenizer's files by name."""
    hash: str
    """SHA-256 over config.json and the weight files, 16 hex digits."""
    source: str
    """Where it came from, as the user named it."""
    notes: tuple[str, ...] = field(default=())
    """What a user should know, e.g. that a classifier for other labels was left out."""


def load_base(
    base: str,
    *,
    revision: str | None = None,
    cache_dir: str | None = None,
    label_names: Sequence[str] | None = None,
) -> BaseModel:
    """Load and check a base DistilBERT.

    Args:
        base: a directory, a path on any storage (hdfs://...) or a hub name.
        revision: revision of a hub name.
        cache_dir: where remote files are kept; none: the project's cache.
        label_names: the task's labels in their order; a classifier in the base is taken over only
            when it was trained for exactly these.
    Raises:
        ModelError: no directory or hub name, no weights, pickle weights only, not DistilBERT,
            missing tensors or tensors of a wrong shape, no tokenizer.
    """
    directory = modelfiles.fetch(base, revision=revision, patterns=_PATTERNS, cache_dir=cache_dir)
    raw_config = _read(directory, "config.json", base, "a config.json of model_type distilbert")
    config = _checked_config(raw_config, base)
    digest = hashlib.sha256(raw_config)
    found: dict[str, np.ndarray] = {}
    formats: set[str] = set()
    for file_name, data in _weight_files(directory, base):
        digest.update(hashlib.sha256(data).digest())
        tensors, metadata = read_safetensors(data, where=storage.join(base, file_name))
        formats.add(metadata.get("format", "pt"))
        found.update(tensors)
    weights, head, notes = _sorted_out(found)
    _check_shapes(weights, config, base, formats)
    refused = _head_notes(head, config, label_names)
    if label_names is not None and not refused:
        weights.update(head)
    tokenizer_files = {
        name: storage.read_bytes(storage.join(directory, name))
        for name in TOKENIZER_FILES
        if storage.exists(storage.join(directory, name))
    }
    _check_tokenizer(tokenizer_files, config, base)
    return BaseModel(
        config=config,
        weights=weights,
        tokenizer_files=tokenizer_files,
        hash=digest.hexdigest()[:16],
        source=base,
        notes=(*notes, *refused),
    )


def read_safetensors(data: bytes, *, where: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors (floating ones as float32) and metadata of a safetensors file's bytes.

    Raises:
        ModelError: the bytes are not whole safetensors.
    """
    import safetensors

    try:
        tensors = safetensors.deserialize(data)
        header_bytes = int.from_bytes(data[:8], "little")
        metadata = json.loads(data[8 : 8 + header_bytes]).get("__metadata__", {})
    except (safetensors.SafetensorError, ValueError) as error:
        raise ModelError(
            "weights are not a whole safetensors file",
            where=where,
            got=f"{len(data):,} bytes: {error}",
            remedy="copy the file again; it may have been cut short",
        ) from None
    return {name: _array(name, tensor, where) for name, tensor in tensors}, metadata


_DTYPES = {
    "F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32,
    "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.bool_,
}  # fmt: skip


def _array(name: str, tensor: Mapping, where: str) -> np.ndarray:
    shape, kind, data = tensor["shape"], tensor["dtype"], tensor["data"]
    if kind == "BF16":  # numpy has no bfloat16: its bits are the upper half of a float32's
        upper = np.frombuffer(data, np.uint16).astype(np.uint32) << 16
        return upper.view(np.float32).reshape(shape)
    if kind not in _DTYPES:
        raise ModelError(
            f"tensor {name} has a type that cannot be trained from",
            where=where,
            expected=f"one of {', '.join([*_DTYPES, 'BF16'])}",
            got=kind,
            remedy="take the model in its full precision, not a quantised one",
        )
    array = np.frombuffer(data, _DTYPES[kind]).reshape(shape)
    return array.astype(np.float32, copy=False) if kind.startswith("F") else array


def _read(directory: str, name: str, base: str, expected: str) -> bytes:
    path = storage.join(directory, name)
    if not storage.exists(path):
        raise ModelError(
            f"the base model has no {name}",
            where=base,
            expected=expected,
            remedy="give model.base a Hugging Face DistilBERT directory or a hub name",
        )
    return storage.read_bytes(path)


def _checked_config(raw: bytes, base: str) -> dict:
    where = storage.join(base, "config.json")
    try:
        given = json.loads(raw)
    except ValueError as error:
        raise ModelError("config.json is not JSON", where=where, got=str(error)) from None
    kind = given.get("model_type") if isinstance(given, dict) else None
    if kind != "distilbert":
        raise ModelError(
            "the base model is not a DistilBERT",
            where=where,
            expected="model_type distilbert",
            got=f"model_type {kind}",
            remedy="take a DistilBERT, e.g. distilbert-base-uncased",
        )
    config = {**CONFIG_DEFAULTS, **given}
    sizes = ("dim", "hidden_dim", "n_heads", "n_layers", "vocab_size", "max_position_embeddings")
    bad = [name for name in sizes if not isinstance(config[name], int) or config[name] < 1]
    if bad:
        raise ModelError(
            "config.json has sizes that no model can have",
            where=where,
            expected="whole numbers above 0",
            got=", ".join(f"{name}={config[name]!r}" for name in bad),
        )
    if config["dim"] % config["n_heads"]:
        raise ModelError(
            "config.json: dim must be divisible by n_heads",
            where=where,
            got=f"dim={config['dim']}, n_heads={config['n_heads']}",
        )
    return config


def _weight_files(directory: str, base: str) -> Iterator[tuple[str, bytes]]:
    index_path = storage.join(directory, _WEIGHTS_INDEX)
    if storage.exists(storage.join(directory, _WEIGHTS)):
        names = [_WEIGHTS]
    elif storage.exists(index_path):
        try:
            names = sorted(set(storage.read_json(index_path)["weight_map"].values()))
        except (KeyError, TypeError, AttributeError, ValueError):
            raise ModelError(
                "the index of the weight shards cannot be read",
                where=storage.join(base, _WEIGHTS_INDEX),
                expected='{"weight_map": {tensor: file}}',
            ) from None
        # A file name out of a downloaded index must not lead out of the directory.
        if strange := [n for n in names if not re.fullmatch(r"[A-Za-z0-9._-]+\.safetensors", n)]:
            raise ModelError(
                "the index of the weight shards names a file outside the directory",
                where=storage.join(base, _WEIGHTS_INDEX),
                got=str(strange[0]),
            )
    else:
        raise _no_weights(directory, base)
    for name in names:
        yield name, _read(directory, name, base, f"the shards that {_WEIGHTS_INDEX} names")


def _no_weights(directory: str, base: str) -> ModelError:
    pickles = [name for name in _PICKLES if storage.exists(storage.join(directory, name))]
    convert = (
        'convert once where you trust the file: python -c "from transformers import AutoModel;'
        f" AutoModel.from_pretrained('{base}'"
        + (", from_tf=True" if pickles[:1] == ["tf_model.h5"] else "")
        + ").save_pretrained('NEW_DIRECTORY', safe_serialization=True)\", then copy the tokenizer's"
        " files beside it"
    )
    if pickles:
        return ModelError(
            "the base model has no safetensors weights, only a format that is not read"
            " (a pickle can run code)",
            where=base,
            expected=f"{_WEIGHTS} or {_WEIGHTS_INDEX}",
            got=", ".join(pickles),
            remedy=convert,
        )
    return ModelError(
        "the base model has no weights",
        where=base,
        expected=f"{_WEIGHTS} or {_WEIGHTS_INDEX}",
        got="neither",
        remedy="if the hub has them as pytorch_model.bin only, " + convert,
    )


def _sorted_out(
    found: Mapping[str, np.ndarray],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[str]]:
    """Encoder tensors under normal names, classifier tensors, and notes about the rest.

    All in the order of their names: safetensors gives a file's in another one each time.
    """
    weights: dict[str, np.ndarray] = {}
    head: dict[str, np.ndarray] = {}
    others: list[str] = []
    for name, array in sorted(found.items()):
        bare = name.removeprefix(PREFIX)
        # Checkpoints that came from TensorFlow 1 call a norm's tensors gamma and beta.
        bare = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", bare))
        if bare in HEAD_NAMES:
            head[bare] = array
        elif bare.startswith(("embeddings.", "transformer.")) and not bare.endswith("position_ids"):
            weights[PREFIX + bare] = array
        elif not _OTHER_HEADS.search(bare):
            others.append(name)
    notes = []
    if others:
        notes.append(f"tensors that no DistilBERT has are ignored: {_some(others)}")
    return weights, head, notes


def _check_shapes(
    weights: Mapping[str, np.ndarray], config: Mapping, base: str, formats: set[str]
) -> None:
    shapes = encoder_shapes(config)
    missing = [name for name in shapes if name not in weights]
    if missing:
        remedy = "the file is of another model, or cut"
        if "tf" in formats:
            remedy = (
                "the file was written by TensorFlow under TensorFlow's names: load it with"
                " DistilBertModel.from_pretrained(..., from_tf=True) and save it again"
            )
        raise ModelError(
            f"{len(missing)} of {len(shapes)} tensors are missing from the base model's weights",
            where=base,
            expected=_some(missing),
            got=f"{len(weights)} tensors of DistilBERT",
            remedy=remedy,
        )
    wrong = [name for name, shape in shapes.items() if weights[name].shape != shape]
    if wrong:
        raise ModelError(
            "the base model's weights do not have the shapes that config.json says",
            where=base,
            expected=_some([f"{name} {shapes[name]}" for name in wrong]),
            got=_some([f"{name} {weights[name].shape}" for name in wrong]),
            remedy="config.json and weights must be of one model",
        )
    unknown = [name for name in weights if name not in shapes]
    if unknown:
        raise ModelError(
            "the base model's weights have more layers than config.json says",
            where=base,
            expected=f"n_layers={config['n_layers']}",
            got=_some(unknown),
            remedy="config.json and weights must be of one model",
        )
    broken = [name for name in shapes if not np.isfinite(weights[name]).all()]
    if broken:
        raise ModelError(
            "the base model's weights hold NaN or infinity", where=base, got=_some(broken)
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _head_notes(
    head: Mapping[str, np.ndarray], config: Mapping, label_names: Sequence[str] | None
) -> list[str]:
    """Why the base's classifier is not taken over; empty where it is, or where there is none."""
    if not head or label_names is None:
        return []
    own = label_names_of(config)
    expected = head_shapes(config, len(label_names))
    if own == list(label_names) and {n: a.shape for n, a in head.items()} == expected:
        return []
    rows = head["classifier.weight"].shape[0] if "classifier.weight" in head else 0
    return [
        f"the base's classifier ({rows} classes: {_some(own) if own else 'unnamed'}) was trained"
        " for other labels: it is left out and a new one is trained"
    ]


def _check_tokenizer(files: Mapping[str, bytes], config: Mapping, base: str) -> None:
    if "tokenizer.json" not in files and "vocab.txt" not in files:
        raise ModelError(
            "the base model has no tokenizer",
            where=base,
            expected="tokenizer.json or vocab.txt",
            got=", ".join(files) or "neither",
            remedy="copy the tokenizer's files of the same model into the directory",
        )
    if "tokenizer.json" in files:
        try:
            vocabulary = json.loads(files["tokenizer.json"])["model"]["vocab"]
            largest = max(vocabulary.values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(
                "tokenizer.json is not a WordPiece tokenizer's file",
                where=storage.join(base, "tokenizer.json"),
                got=str(error),
            ) from None
    else:
        largest = len(files["vocab.txt"].decode("utf-8", "replace").rstrip("\n").split("\n")) - 1
    if largest >= config["vocab_size"]:
        raise ModelError(
            "the tokenizer gives ids that the model has no embedding for",
            where=base,
            expected=f"ids below vocab_size={config['vocab_size']}",
            got=f"ids up to {largest}",
            remedy="tokenizer and weights must be of one model",
        )
