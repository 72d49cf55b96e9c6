"""Image files to pixels: one encoder for the ETL and for prediction.

An image is opened as transformers' image-classification pipeline opens it (EXIF orientation
applied, RGB), but for 16-bit and transparent ones (`_rgb`), and resized by Pillow as the model's
preprocessor_config.json says; the pixels are stored as uint8. Scaling and normalising are the
forward pass's.
"""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from howdah.data import modelfiles
from howdah.data.family import IMAGE_FILES, family_of
from howdah.data.family_record import ImageFamily
from howdah.data.manifest import ImageEntry, content_hash
from howdah.errors import ModelError

FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
"""The formats that are decoded: no other parser of Pillow's sees a byte of the source."""
MAX_BYTES = 64 * 2**20
"""Larger image files are rejected without being read (too_large); photographs have 2 to 10 MiB."""
MAX_PIXELS = 50_000_000
"""Images of more pixels are rejected by their header, before they are decoded (too_large): decoded
they would take 150 MB of a Spark task. Below the limit at which Pillow warns of a bomb."""
_MIN_SIDE = 8
"""Images of fewer pixels in width or height are rejected (too_small): icons and tracking pixels."""
_PROCESSOR = IMAGE_FILES[0]
_CONFIG = "config.json"
_MODE = "RGB"
_CHANNELS = 3
# Source: transformers' ViTImageProcessor.
_DEFAULTS: dict[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "resample": 2,
    "rescale_factor": 1 / 255,
    "image_mean": [0.5] * _CHANNELS,
    "image_std": [0.5] * _CHANNELS,
}


class UnusableImage(Exception):
    """An image that cannot be a row: a reason of the reject table, and its detail."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason, self.detail = reason, detail


class ImageEncoder:
    """Decodes and resizes images for one model.

    Args:
        files: {file name: bytes} of a model directory: config.json and preprocessor_config.json.
        source: path or hub name of the model, for messages and the manifest.
    Raises:
        ModelError: no image model, or a preprocessing that is not done here.
    """

    vocab_size = 256
    """Values of a pixel's channel."""
    pad_id = 0

    def __init__(self, files: Mapping[str, bytes], source: str) -> None:
        self.files = {name: files[name] for name in (_CONFIG, _PROCESSOR) if name in files}
        self.source = source
        config = self._json(_CONFIG)
        family = family_of(config, where=f"{source}: {_CONFIG}")
        if not isinstance(family, ImageFamily):
            raise ModelError(
                f"the base model is a {family.title}, which reads texts, and the rows are images",
                where=f"model.base {source}",
                expected="a model of images, such as a ViT",
                got=f"model_type {family.model_type}",
                remedy="set model.base to a vision transformer, or data.kind to text",
            )
        config = family.complete(config)
        settings = _DEFAULTS | {k: v for k, v in self._json(_PROCESSOR).items() if v is not None}
        self._check(config, family, settings)
        self.image = ImageEntry(
            height=config[family.image_size],
            width=config[family.image_size],
            channels=_CHANNELS,
        )
        self.tokens = family.longest(config)
        """Tokens of each image in the model: its patches, and one for the class."""
        self.mean = [float(value) for value in settings["image_mean"]]
        self.std = [float(value) for value in settings["image_std"]]
        self._resample = int(settings["resample"])
        self.hash: str = content_hash(
            {
                "image": self.image.model_dump(),
                "tokens": self.tokens,
                "resample": self._resample,
                "mode": _MODE,
            }
        )
        """Hash of all that decides the stored pixels: equal hashes give equal rows."""

    @classmethod
    def load(cls, base: str, revision: str | None = None) -> ImageEncoder:
        """The encoder of a base model: a directory, one on another storage, or a hub name."""
        return cls(modelfiles.read(base, (_CONFIG, _PROCESSOR), revision), base)

    @classmethod
    def of_model(cls, config: Mapping, files: Mapping[str, bytes], source: str) -> ImageEncoder:
        """The encoder of a loaded model.

        Args:
            config: its config.json.
            files: with its preprocessor_config.json.
        """
        return cls({**files, _CONFIG: json.dumps(dict(config)).encode()}, source)

    def decode(self, data: bytes) -> np.ndarray:
        """The pixels of an image file, uint8 [height * width * channels].

        Raises:
            UnusableImage: it is not an image, or a broken, too small or too large one.
        """
        image = open_image(data)
        height, width = self.image.height, self.image.width
        if image.size != (width, height):
            image = image.resize((width, height), resample=self._resample)
        return np.array(image, np.uint8).reshape(-1)

    def _json(self, name: str) -> dict:
        if name not in self.files:
            raise ModelError(
                f"the base model has no {name}, which says how images are prepared"
                if name == _PROCESSOR
                else f"the base model has no {name}",
                where=self.source,
                expected=f"{_CONFIG} and {_PROCESSOR}",
                remedy="save both beside the weights: ViTImageProcessor(...).save_pretrained writes"
                f" {_PROCESSOR}",
            )
        try:
            value = json.loads(self.files[name])
        except ValueError as error:
            raise ModelError(f"{name} is not JSON", where=self.source, got=str(error)) from None
        if not isinstance(value, dict):
            raise ModelError(
                f"{name} is not a JSON object", where=self.source, got=repr(value)[:80]
            )
        return value

    def _check(self, config: Mapping, family: ImageFamily, settings: Mapping) -> None:
        """Refuse what would be prepared otherwise than the model's own processor does."""
        side = config[family.image_size]
        size = settings.get("size", {"height": side, "width": side})
        if isinstance(size, int):  # as processors of before 2022 wrote it
            size = {"height": size, "width": size}
        problems = [
            *((f"{_CONFIG}: {key}", config[key], value) for key, value in family.fixed.items()),
            (f"{_PROCESSOR}: size", size, {"height": side, "width": side}),
            *(
                (f"{_PROCESSOR}: {key}", settings[key], True)
                for key in ("do_resize", "do_rescale", "do_normalize")
            ),
            (f"{_PROCESSOR}: do_center_crop", bool(settings.get("do_center_crop")), False),
        ]
        wrong = [one for one in problems if one[1] != one[2]]
        factor = settings["rescale_factor"]
        if not isinstance(factor, int | float) or abs(factor * 255 - 1) > 1e-4:
            wrong.append((f"{_PROCESSOR}: rescale_factor", factor, 1 / 255))
        for key in ("image_mean", "image_std"):
            values = settings[key]
            numbers = isinstance(values, list) and all(isinstance(v, int | float) for v in values)
            if not numbers or len(values) != _CHANNELS:
                wrong.append((f"{_PROCESSOR}: {key}", values, f"{_CHANNELS} numbers"))
        if settings["resample"] not in range(6):
            wrong.append((f"{_PROCESSOR}: resample", settings["resample"], "0 to 5, as Pillow's"))
        patch = config[family.patch_size]
        if not isinstance(side, int) or not isinstance(patch, int) or patch < 1 or side % patch:
            wrong.append(
                (f"{_CONFIG}: {family.image_size}", side, f"a multiple of the patch's {patch}")
            )
        if wrong:
            where, got, expected = wrong[0]
            raise ModelError(
                "the base model prepares images in a way that is not supported",
                where=f"{self.source}: {where}",
                expected=str(expected),
                got=str(got),
                remedy="take another model, or save it with a ViTImageProcessor of its image_size",
            )


def open_image(data: bytes) -> Any:
    """A Pillow image in RGB, upright, of an image file's bytes.

    The header's size is judged before a pixel is decoded: a small file can claim any number.

    Raises:
        UnusableImage: it is not an image of FORMATS, or a broken, too small or too large one.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if not data:
        raise UnusableImage("empty", "0 bytes")
    if len(data) > MAX_BYTES:
        raise UnusableImage("too_large", f"{len(data):,} bytes")
    try:
        with warnings.catch_warnings():
            # Pillow warns above its own limit, which ours replaces; of odd EXIF data, too.
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                width, height = image.size
                if width * height > MAX_PIXELS:
                    raise UnusableImage("too_large", f"{width} x {height} pixels")
                if min(width, height) < _MIN_SIDE:
                    raise UnusableImage("too_small", f"{width} x {height} pixels")
                image.load()
                return _rgb(ImageOps.exif_transpose(image))
    except UnusableImage:
        raise
    except UnidentifiedImageError:
        raise UnusableImage("undecodable", f"no {', '.join(FORMATS)}") from None
    except Image.DecompressionBombError as error:
        raise UnusableImage("too_large", str(error)) from None
    except MemoryError:
        raise UnusableImage("too_large", "no memory to decode it") from None
    except Exception as error:  # noqa: BLE001 - Pillow's decoders raise whatever a file leads them to
        raise UnusableImage("undecodable", f"{type(error).__name__}: {error}"[:200]) from None


def _rgb(image: Any) -> Any:
    """A Pillow image in RGB, 8 bits a channel.

    Pillow's own conversion clips 16 bits at 255, which makes almost any such image white, and drops
    transparency, under which most programs store black. Here 16 bits become 8 by their share of
    65,535, and what is transparent is laid on white.
    """
    from PIL import Image

    if image.mode == "I" or image.mode.startswith("I;16"):  # of PNG alone
        grey = np.asarray(image).astype(np.int64)
        image = Image.fromarray(((grey * 255 + 32_767) // 65_535).astype(np.uint8), "L")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(ground, image)
    return image.convert(_MODE)
