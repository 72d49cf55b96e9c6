"""Images that need no download, and a small random vision transformer.

    python -m tools.demo.images digits DIR [--parquet]   # scikit-learn's 1,797 handwritten digits
    python -m tools.demo.images shapes DIR --count 2000  # rendered shapes and letters
    python -m tools.demo.images vit DIR --side 16 --patch 4 --width 64 --layers 4

The first two write DIR/<label>/<number>.png, or DIR/images.parquet with the columns id, image and
label. The last one is a base model for `model.base`, with random weights.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from howdah.data.family import VIT

Image = tuple[str, str, bytes]
"""(id, label, a PNG file's bytes)"""
LETTERS = "AHX"


def digits() -> Iterator[Image]:
    """The images of scikit-learn's load_digits: 8 x 8 pixels of 17 grey levels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    for number, (pixels, label) in enumerate(zip(data.images, data.target, strict=True)):
        yield f"{number:05d}", str(label), _png(np.rint(pixels * 255 / 16).astype(np.uint8))


def shapes(count: int, side: int, seed: int) -> Iterator[Image]:
    """Rendered shapes and letters in random colours, sizes and places, with noise."""
    from PIL import Image as Pillow
    from PIL import ImageDraw, ImageFont

    rng = np.random.default_rng(seed)
    labels = ["circle", "square", "triangle", *(f"letter_{letter}" for letter in LETTERS)]
    for number in range(count):
        label = labels[number % len(labels)]
        back, fore = rng.integers(0, 110, 3), rng.integers(145, 256, 3)
        canvas = Pillow.new("RGB", (side, side), tuple(back.tolist()))
        draw, fill = ImageDraw.Draw(canvas), tuple(fore.tolist())
        size = int(rng.integers(side * 2 // 5, side * 4 // 5))
        x, y = (int(rng.integers(1, side - size)) for _ in range(2))
        box = (x, y, x + size, y + size)
        if label == "circle":
            draw.ellipse(box, fill=fill)
        elif label == "square":
            draw.rectangle(box, fill=fill)
        elif label == "triangle":
            draw.polygon([(x, y + size), (x + size, y + size), (x + size // 2, y)], fill=fill)
        else:
            font = ImageFont.load_default(size)
            draw.text((x, y), label[-1], fill=fill, font=font)
        noisy = np.asarray(canvas, np.float32) + rng.normal(0, 10, (side, side, 3))
        yield f"{number:05d}", label, _png(np.clip(noisy, 0, 255).astype(np.uint8))


def _png(pixels: np.ndarray) -> bytes:
    from PIL import Image as Pillow

    buffer = io.BytesIO()
    Pillow.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def write_folder(directory: str, images: Iterator[Image]) -> int:
    """Write <directory>/<label>/<id>.png; return the number of files."""
    count = 0
    for key, label, data in images:
        os.makedirs(os.path.join(directory, label), exist_ok=True)
        with open(os.path.join(directory, label, f"{key}.png"), "wb") as file:
            file.write(data)
        count += 1
    return count


def write_parquet(directory: str, images: Iterator[Image]) -> int:
    """Write <directory>/images.parquet; return the number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"id": key, "label": label, "image": data} for key, label, data in images]
    os.makedirs(directory, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), os.path.join(directory, "images.parquet"))
    return len(rows)


def write_vit(
    directory: str, *, side: int, patch: int, width: int, layers: int, seed: int = 0
) -> dict:
    """Write a ViT with random weights and its image processor; return its config.json.

    Weights are normal(0, 0.02), as in transformers; norms are 1, biases 0.
    """
    from safetensors.numpy import save_file

    config = VIT.complete(
        {
            "image_size": side, "patch_size": patch, "hidden_size": width,
            "intermediate_size": 2 * width, "num_hidden_layers": layers,
            "num_attention_heads": max(1, width // 16),
        }
    )  # fmt: skip
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in VIT.encoder_shapes(config).items():
        drawn = rng.normal(0, config["initializer_range"], shape)
        if name.endswith(".bias"):
            drawn = np.zeros(shape)
        elif "layernorm" in name:
            drawn = np.ones(shape)
        weights[name] = drawn.astype(np.float32)
    processor = {
        "image_processor_type": "ViTImageProcessor", "do_resize": True, "do_rescale": True,
        "do_normalize": True, "resample": 2, "rescale_factor": 1 / 255,
        "size": {"height": side, "width": side}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3,
    }  # fmt: skip
    os.makedirs(directory, exist_ok=True)
    files = (
        ("config.json", {**config, "architectures": ["ViTModel"]}),
        ("preprocessor_config.json", processor),
    )
    for name, value in files:
        with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
            json.dump(value, file, indent=1)
    save_file(weights, os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
    return config


def main(argv: Sequence[str] | None = None) -> int:
    """Write images or a model, by the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.demo.images", description=__doc__.splitlines()[0]
    )
    parser.add_argument("what", choices=["digits", "shapes", "vit"])
    parser.add_argument("directory")
    parser.add_argument("--parquet", action="store_true", help="one Parquet file in place of PNGs")
    for name, default in (
        ("count", 2000), ("side", 16), ("patch", 4), ("width", 64), ("layers", 4), ("seed", 0),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(argv)
    if options.what == "vit":
        made = write_vit(
            options.directory, side=options.side, patch=options.patch, width=options.width,
            layers=options.layers, seed=options.seed,
        )  # fmt: skip
        print(f"{options.directory}: {VIT.parameters(made, 10):,} weights with 10 classes")
        return 0
    drawn = options.what == "shapes"
    images = shapes(options.count, options.side, options.seed) if drawn else digits()
    write = write_parquet if options.parquet else write_folder
    print(f"{options.directory}: {write(options.directory, images):,} images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
