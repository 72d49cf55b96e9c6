"""Load a base model (a directory, a path on any storage, a hub name) without a framework.

Weights are returned as float32 numpy arrays under Hugging Face's torch names, with the family's
prefix even if the file's names lack it. Only safetensors is read: a pickle can run code.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from howdah import storage
from howdah.data import modelfiles
from howdah.data.family import (
    FAMILIES,
    IMAGE_FILES,
    TOKENIZER_FILES,
    ModelFamily,
    family_of,
    known_titles,
)
from howdah.data.images import ImageEncoder
from howdah.errors import DataError, ModelError
from howdah.models import integrity
from howdah.models.weights.tensors import read_header

WEIGHTS = "model.safetensors"
_WEIGHTS_INDEX = "model.safetensors.index.json"
_PICKLES = (
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
    "tf_model.h5",
    "flax_model.msgpack",
)
_DAMAGED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What JSON of another shape leads to: a number may be infinite, a nesting too deep."""
# Only these files are fetched from the hub, so that no pickle reaches the disk.
_PATTERNS = ["config.json", "howdah.json", "model*.safetensors", _WEIGHTS_INDEX]
_PATTERNS += [*TOKENIZER_FILES, *IMAGE_FILES]


@dataclass(frozen=True)
class BaseModel:
    """A base model in memory."""

    config: dict
    """config.json, the family's defaults filled in; for an image model also image_mean and
    image_std of its preprocessor_config.json, which the forward pass needs."""
    weights: dict[str, np.ndarray]
    """float32 arrays by Hugging Face's torch names; the head's only if the labels agree."""
    tokenizer_files: dict[str, bytes]
    """The tokenizer's files by name; for an image model, its preprocessor_config.json."""
    hash: str
    """SHA-256 over config.json and the weight files, 16 hex digits."""
    source: str
    """The path or hub name as the user wrote it."""
    notes: tuple[str, ...] = field(default=())
    """Messages for the user, e.g. that a classifier for other labels was ignored."""

    @property
    def family(self) -> ModelFamily:
        """The family that config.json's model_type names."""
        return family_of(self.config)


def load_base(
    base: str,
    *,
    revision: str | None = None,
    label_names: Sequence[str] | None = None,
    weights: bool = True,
) -> BaseModel:
    """Load and check a base model.

    Args:
        base: a directory, a path on any storage (hdfs://...) or a hub name.
        label_names: the task's labels in their order; the base's classifier is used only if it was
            trained for exactly these.
        weights: False: do not read or check the weights; `hash` then covers only config.json.
    Raises:
        ModelError: there is no such directory or hub name, no weights, only pickle weights, an
            unknown family, missing or misshapen tensors, or no tokenizer; or the weights of a
            published version differ from its manifest.
    """
    directory = modelfiles.fetch(base, revision=revision, patterns=_PATTERNS)
    published = integrity.files_of(base) or {}
    expected = f"a config.json of model_type {' or '.join(FAMILIES)}"
    raw_config = _read(directory, "config.json", base, expected)
    family, config = _checked_config(raw_config, base)
    digest = hashlib.sha256(raw_config)
    tokenizer_files = {
        name: storage.read_bytes(storage.join(directory, name))
        for name in {"text": TOKENIZER_FILES, "image": IMAGE_FILES}[family.kind]
        if storage.exists(storage.join(directory, name))
    }
    if family.kind == "image":  # before the weights: their shapes follow from these sizes
        encoder = ImageEncoder.of_model(config, tokenizer_files, base)
        config |= {"image_mean": encoder.mean, "image_std": encoder.std}
        digest.update(json.dumps([encoder.mean, encoder.std]).encode())
    tensors: dict[str, np.ndarray] = {}
    notes: list[str] = []
    if weights:
        arrays: dict[str, np.ndarray] = {}
        formats: set[str] = set()
        for file_name, data in _weight_files(directory, base):
            sha256 = hashlib.sha256(data)
            if file_name in published:  # compares the bytes that are used, without a second read
                got = {"bytes": len(data), "sha256": sha256.hexdigest()}
                integrity.require_same(storage.join(base, file_name), published[file_name], got)
            digest.update(sha256.digest())
            read, metadata = read_safetensors(data, where=storage.join(base, file_name))
            formats.add(metadata.get("format", "pt"))
            arrays.update(read)
        tensors, head, notes = _by_part(arrays, family)
        _check_shapes(tensors, family, config, base, formats)
        refused = _head_notes(head, family, config, label_names)
        notes += refused
        if label_names is not None and not refused:
            tensors.update(head)
    if family.kind == "text":  # after the shapes, whose error names a wrong vocabulary size
        _check_tokenizer(tokenizer_files, family, config, base)
    return BaseModel(
        config=config,
        weights=tensors,
        tokenizer_files=tokenizer_files,
        hash=digest.hexdigest()[:16],
        source=base,
        notes=tuple(notes),
    )


def read_safetensors(data: bytes, *, where: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Tensors (floating-point ones as float32) and metadata of a safetensors file's bytes.

    Raises:
        ModelError: the bytes are not a complete safetensors file.
    """
    import safetensors

    try:
        tensors = safetensors.deserialize(data)
        _, metadata = read_header(io.BytesIO(data))
    except (safetensors.SafetensorError, ValueError) as error:
        raise ModelError(
            "the weights are not a complete safetensors file; copy the file again",
            where=where,
            got=f"{len(data):,} bytes: {error}",
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
            f"tensor {name} has the type {kind}, which cannot be trained",
            where=where,
            expected=f"one of {', '.join([*_DTYPES, 'BF16'])}",
            remedy="use the model in full precision, not a quantised one",
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
            remedy=f"set model.base to a Hugging Face {known_titles()} directory or a hub name",
        )
    return storage.read_bytes(path)


def label_names_of(config: Mapping) -> list[str] | None:
    """The labels in config.json's id2label by number; None if it has none.

    transformers does not write its default, which is two labels: a classifier with these has no
    id2label.
    """
    id2label, architectures = config.get("id2label"), config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    heads = ("ForSequenceClassification", "ForImageClassification")
    if id2label is None and any(str(name).endswith(heads) for name in names):
        return ["LABEL_0", "LABEL_1"]
    if not id2label:
        return None
    try:
        by_number = {int(key): str(value) for key, value in id2label.items()}
        return [by_number[number] for number in range(len(by_number))]
    except (AttributeError, ValueError, KeyError):
        return None


def _checked_config(raw: bytes, base: str) -> tuple[ModelFamily, dict]:
    where = storage.join(base, "config.json")
    try:
        raw_config = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ModelError("config.json is not JSON", where=where, got=str(error)) from None
    family = family_of(raw_config, where=where)
    keys, config = family.keys, family.complete(raw_config)
    bad = [
        name for name in family.size_keys if not isinstance(config[name], int) or config[name] < 1
    ]
    if bad:
        raise ModelError(
            "sizes in config.json must be integers above 0",
            where=where,
            got=", ".join(f"{name}={config[name]!r}" for name in bad),
        )
    width, heads = config[keys.width], config[keys.heads]
    if width % heads:
        raise ModelError(
            f"config.json: {keys.width} must be divisible by {keys.heads}",
            where=where,
            got=f"{keys.width}={width}, {keys.heads}={heads}",
        )
    family.check_fixed(config, where=where)
    return family, config


def _weight_files(directory: str, base: str) -> Iterator[tuple[str, bytes]]:
    index_path = storage.join(directory, _WEIGHTS_INDEX)
    if storage.exists(storage.join(directory, WEIGHTS)):
        names = [WEIGHTS]
    elif storage.exists(index_path):
        try:
            names = sorted(set(storage.read_json(index_path)["weight_map"].values()))
            # A downloaded index must not name a file outside the directory.
            outside = [n for n in names if not re.fullmatch(r"[A-Za-z0-9._-]+\.safetensors", n)]
        except (KeyError, TypeError, AttributeError, DataError):
            raise ModelError(
                "the index of the weight shards cannot be read",
                where=storage.join(base, _WEIGHTS_INDEX),
                expected='{"weight_map": {tensor: file}}',
            ) from None
        if outside:
            raise ModelError(
                "the index of the weight shards names a file outside the directory",
                where=storage.join(base, _WEIGHTS_INDEX),
                got=outside[0],
            )
    else:
        raise _no_weights(directory, base)
    for name in names:
        yield name, _read(directory, name, base, f"the shards that {_WEIGHTS_INDEX} names")


def _no_weights(directory: str, base: str) -> ModelError:
    pickles = [name for name in _PICKLES if storage.exists(storage.join(directory, name))]
    convert = (
        'convert it once if you trust the file: python -c "from transformers import AutoModel;'
        f" AutoModel.from_pretrained('{base}'"
        + (", from_tf=True" if pickles[:1] == ["tf_model.h5"] else "")
        + ").save_pretrained('NEW_DIRECTORY', safe_serialization=True)\", then copy the tokenizer's"
        " files beside it"
    )
    if pickles:
        return ModelError(
            "the base model has only weights in a format that is not read (a pickle can run code)",
            where=base,
            expected=f"{WEIGHTS} or {_WEIGHTS_INDEX}",
            got=", ".join(pickles),
            remedy=convert,
        )
    return ModelError(
        "the base model has no weights",
        where=base,
        expected=f"{WEIGHTS} or {_WEIGHTS_INDEX}",
        remedy="if the hub only has pytorch_model.bin, " + convert,
    )


def _by_part(
    tensors: Mapping[str, np.ndarray], family: ModelFamily
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[str]]:
    """(encoder tensors under normalised names, classifier tensors, notes about the others).

    Tensors are sorted by name, since safetensors returns them in a different order at each call.
    """
    weights: dict[str, np.ndarray] = {}
    head: dict[str, np.ndarray] = {}
    others: list[str] = []
    for name, array in sorted(tensors.items()):
        bare = name.removeprefix(family.prefix)
        # Checkpoints converted from TensorFlow 1 call a norm's tensors gamma and beta.
        bare = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", bare))
        if bare in family.head_names:
            head[bare] = array
        elif bare.endswith("position_ids") or bare.startswith(family.other_heads):
            continue  # not used by a classifier
        elif bare.startswith(family.encoder):
            weights[family.prefix + bare] = array
        else:
            others.append(name)
    notes = []
    if family.pooler and not any(name in weights for name in family.pooler_names):
        notes.append(f"the base has no {family.prefix}{family.pooler}: a new one is trained")
    if others:
        notes.append(f"tensors that do not belong to a {family.title} are ignored: {_some(others)}")
    return weights, head, notes


def _check_shapes(
    weights: Mapping[str, np.ndarray],
    family: ModelFamily,
    config: Mapping,
    base: str,
    formats: set[str],
) -> None:
    shapes = family.encoder_shapes(config)
    if not any(name in weights for name in family.pooler_names):  # a new one is trained
        shapes = {name: s for name, s in shapes.items() if name not in family.pooler_names}
    missing = [name for name in shapes if name not in weights]
    if missing:
        remedy = "use the weights of the model that config.json describes"
        if "tf" in formats:
            remedy = (
                "the file was written by TensorFlow under TensorFlow's names: load it with"
                " AutoModel.from_pretrained(..., from_tf=True) and save it again"
            )
        raise ModelError(
            f"{len(missing)} of {len(shapes)} tensors are missing from the base model's weights",
            where=base,
            expected=_some(missing),
            got=f"{len(weights)} tensors of {family.title}",
            remedy=remedy,
        )
    wrong = [name for name, shape in shapes.items() if weights[name].shape != shape]
    if wrong:
        raise ModelError(
            "the base model's weights have other shapes than config.json: use files of one model",
            where=base,
            expected=_some([f"{name} {shapes[name]}" for name in wrong]),
            got=_some([f"{name} {weights[name].shape}" for name in wrong]),
        )
    extra = [name for name in weights if name not in shapes]
    if extra:
        raise ModelError(
            "the base model's weights have more layers than config.json",
            where=base,
            expected=f"{family.keys.layers}={config[family.keys.layers]}",
            got=_some(extra),
        )
    broken = [name for name in shapes if not np.isfinite(weights[name]).all()]
    if broken:
        raise ModelError(
            "the base model's weights contain NaN or infinity", where=base, got=_some(broken)
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _head_notes(
    head: Mapping[str, np.ndarray],
    family: ModelFamily,
    config: Mapping,
    label_names: Sequence[str] | None,
) -> list[str]:
    """The reason why the base's classifier is not used; [] if it is used or does not exist."""
    if not head or label_names is None:
        return []
    labels = label_names_of(config)
    expected = family.head_shapes(config, len(label_names))
    if labels == list(label_names) and {n: a.shape for n, a in head.items()} == expected:
        return []
    last = f"{family.head[-1]}.weight"
    rows = head[last].shape[0] if last in head else 0
    names = _some(labels) if labels else "unnamed"
    return [
        f"the base's classifier ({rows} classes: {names}) was trained for other labels: it is"
        " ignored and a new one is trained"
    ]


def _check_tokenizer(
    files: Mapping[str, bytes], family: ModelFamily, config: Mapping, base: str
) -> None:
    kind, size_key = family.tokenizer, family.keys.vocabulary
    name = next((name for name in kind.vocabularies if name in files), None)
    if name is None:
        raise ModelError(
            "the base model has no tokenizer",
            where=base,
            expected=" or ".join(kind.vocabularies),
            remedy="copy the tokenizer's files of the same model into the directory",
        )
    try:
        largest = _largest_id(name, files[name])
    except _DAMAGED as error:
        raise ModelError(
            f"{name} is not a {kind.algorithm} tokenizer's file",
            where=storage.join(base, name),
            got=str(error),
        ) from None
    if largest >= config[size_key]:
        raise ModelError(
            "the tokenizer has ids without an embedding: it belongs to another model",
            where=base,
            expected=f"ids below {size_key}={config[size_key]}",
            got=f"ids up to {largest}",
        )


def _largest_id(name: str, data: bytes) -> int:
    """The largest id in a tokenizer's file; any exception of JSON's values if it is damaged."""
    if name == "vocab.txt":
        return len(data.decode("utf-8", "replace").rstrip("\n").split("\n")) - 1
    vocabulary = json.loads(data)
    added = []
    if name == "tokenizer.json":
        # A special token that a text spells is text (data/encode.py), any other one is a token.
        added = [t["id"] for t in vocabulary.get("added_tokens") or [] if not t.get("special")]
        vocabulary = vocabulary["model"]["vocab"]
        if isinstance(vocabulary, list):  # Unigram's: [piece, score] in the order of the ids
            return max(len(vocabulary) - 1, *added, 0)
    return max(map(int, (*vocabulary.values(), *added)))
