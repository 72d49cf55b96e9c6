"""Small images and a small vision transformer for tests."""

from __future__ import annotations

import io
import json
import os

import numpy as np


def write_tiny_vit(directory: str, *, side: int = 16, patch: int = 8, **sizes: int) -> str:
    """A random ViT with its processor, saved by transformers; returns the directory."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(3)
    sizes = {
        "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "intermediate_size": 48, **sizes,
    }  # fmt: skip
    config = ViTConfig(image_size=side, patch_size=patch, initializer_range=0.2, **sizes)
    ViTForImageClassification(config).save_pretrained(directory)
    ViTImageProcessor(size={"height": side, "width": side}).save_pretrained(directory)
    return directory


VIT_FILES = ("config.json", "preprocessor_config.json")


def write_processor(directory: str, side: int = 16, patch: int = 8) -> str:
    """Config and processor of such a model, without its weights and without transformers."""
    config = {
        "model_type": "vit", "image_size": side, "patch_size": patch, "hidden_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    }  # fmt: skip
    processor = {
        "image_processor_type": "ViTImageProcessor", "size": {"height": side, "width": side},
        "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    }  # fmt: skip
    os.makedirs(directory, exist_ok=True)
    for name, value in zip(VIT_FILES, (config, processor), strict=True):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            json.dump(value, file)
    return directory


def png(pixels: np.ndarray, form: str = "PNG") -> bytes:
    """An image file's bytes of uint8 [H, W] or [H, W, 3]."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


def write_shapes(directory: str, count: int, *, seed: int = 0, side: int = 16) -> int:
    """Noisy images of two classes in <directory>/<class>/<n>.png: lit from above or left."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        label = ("above", "left")[number % 2]
        os.makedirs(os.path.join(directory, label), exist_ok=True)
        with open(os.path.join(directory, label, f"{number:04d}.png"), "wb") as file:
            file.write(png(_lit(label, side, rng)))
    return count


def _lit(label: str, side: int, rng: np.random.Generator) -> np.ndarray:
    ramp = np.linspace(40, 200, side)
    plain = ramp[:, None] if label == "above" else ramp[None, :]
    return np.clip(plain + rng.normal(0, 12, (side, side)), 0, 255).astype(np.uint8)


def build_images(path: str, base: str, rows: dict[str, int], *, shards: int = 2):
    """A committed dataset of `write_shapes`' two classes for the model in `base`, without Spark."""
    from howdah import storage
    from howdah.data.images import ImageEncoder
    from howdah.data.manifest import (
        DatasetManifest,
        RecordEntry,
        TokenizerEntry,
        commit,
        load_dataset,
    )
    from howdah.data.record import Columns, RecordLayout, ShardWriter

    encoder = ImageEncoder.load(base)
    layout = RecordLayout(
        ids_dtype="uint8", columns=Columns(input_ids="image", length=None),
        image=encoder.image, image_tokens=encoder.tokens,
    )  # fmt: skip
    splits, rng = {}, np.random.default_rng(1)
    for split, count in rows.items():
        splits[split] = []
        for n, part in enumerate(np.array_split(np.arange(count), shards)):
            name = f"{split}-{n:05d}-of-{shards:05d}.tfrecord"
            files = [png(_lit(("above", "left")[i % 2], 16, rng)) for i in part]
            pixels = [encoder.decode(file) for file in files]
            with storage.open_write(storage.join(path, name)) as file:
                writer = ShardWriter(file, layout)
                writer.write(pixels, part % 2, [f"{split}-{i}".encode() for i in part])
                stats = writer.close()
            entry = stats.entry(name)
            splits[split].append(entry)
            with storage.open_write(storage.join(path, entry.index_name)) as file:
                file.write(stats.index)
    manifest = DatasetManifest(
        dataset_hash="0" * 16, created="2026-01-01T00:00:00Z", etl_version="test",
        labels=["above", "left"], max_length=encoder.tokens,
        tokenizer=TokenizerEntry(
            hash=encoder.hash, vocab_size=encoder.vocab_size, pad_id=0, source=base
        ),
        record=RecordEntry(
            ids_dtype="uint8", image=encoder.image,
            columns={"input_ids": "image", "label": "label", "id": "id"},
        ),
        splits=splits, source={"kind": "test"}, seed=0, split_rule={}, cleaning={},
    )  # fmt: skip
    commit(path, manifest)
    return load_dataset(path)
