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
    ramp = np.linspace(40, 200, side)
    for number in range(count):
        label = ("above", "left")[number % 2]
        plain = ramp[:, None] if label == "above" else ramp[None, :]
        noisy = plain + rng.normal(0, 12, (side, side, 3)[:2])
        os.makedirs(os.path.join(directory, label), exist_ok=True)
        with open(os.path.join(directory, label, f"{number:04d}.png"), "wb") as file:
            file.write(png(np.clip(noisy, 0, 255).astype(np.uint8)))
    return count
