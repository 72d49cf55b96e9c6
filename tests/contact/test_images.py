"""Images of every kind that programs write: 16 bits, transparency, palettes. Bytes by hand."""

import struct
import zlib

import numpy as np
import pytest

from howdah.data.images import open_image

SIDE = 16


def png(pixels: np.ndarray, colour: int, bits: int = 8, chunks: bytes = b"") -> bytes:
    """A PNG of rows of samples, by its specification.

    Args:
        colour: 0 grey, 2 RGB, 3 palette, 4 grey with alpha, 6 RGB with alpha.
    """

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    samples = pixels.astype(">u2" if bits == 16 else "u1")
    lines = b"".join(b"\0" + row.tobytes() for row in samples)
    header = struct.pack(">IIBBBBB", pixels.shape[1], pixels.shape[0], bits, colour, 0, 0, 0)
    more = b""
    while chunks:
        (size,) = struct.unpack(">I", chunks[:4])
        more, chunks = more + chunk(chunks[4:8], chunks[8 : 8 + size]), chunks[8 + size :]
    body = (
        chunk(b"IHDR", header) + more + chunk(b"IDAT", zlib.compress(lines)) + chunk(b"IEND", b"")
    )
    return b"\x89PNG\r\n\x1a\n" + body


def part(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data


def opened(data: bytes) -> np.ndarray:
    return np.asarray(open_image(data))


def test_sixteen_bits_are_scaled():
    ramp = np.linspace(0, 65_535, SIDE * SIDE).astype(int).reshape(SIDE, SIDE)
    pixels = opened(png(ramp, 0, 16))
    assert pixels.shape == (SIDE, SIDE, 3) and pixels.dtype == np.uint8
    assert (pixels == np.round(ramp / 257)[..., None]).all()
    assert (pixels[0, 0].max(), pixels[-1, -1].min()) == (0, 255)


def test_images_of_twelve_bits_in_sixteen_stay_different():
    random = np.random.default_rng(7)
    images = [png(random.integers(300, 4096, (SIDE, SIDE)), 0, 16) for _ in range(20)]
    assert len({opened(one).tobytes() for one in images}) == 20


@pytest.mark.parametrize("colour", [4, 6])
def test_what_is_transparent_is_white(colour):
    rows, columns = np.mgrid[:SIDE, :SIDE] - SIDE / 2
    drawings = {"circle": rows**2 + columns**2 < 30, "square": (abs(rows) < 4) & (abs(columns) < 4)}
    images = {}
    for name, inside in drawings.items():
        pixels = np.zeros((SIDE, SIDE, 2 if colour == 4 else 4), int)  # black, also under the alpha
        pixels[..., -1] = inside * 255
        images[name] = opened(png(pixels, colour))
        assert (images[name] == np.where(inside, 0, 255)[..., None]).all()
    assert (images["circle"] != images["square"]).any()


def test_half_transparent_is_mixed_and_opaque_stays():
    pixels = np.tile([200, 100, 0, 255], (SIDE, SIDE, 1))
    assert (opened(png(pixels, 6)) == [200, 100, 0]).all()
    pixels[..., 3] = 128
    assert np.abs(opened(png(pixels, 6)).astype(int) - [227, 177, 127]).max() <= 1


def test_a_transparent_colour_of_a_palette_or_of_rgb_is_white():
    index = np.zeros((SIDE, SIDE), int)
    index[4:8] = 1
    palette = part(b"PLTE", bytes([0, 0, 0, 9, 8, 7])) + part(b"tRNS", bytes([0, 255]))
    pixels = opened(png(index, 3, chunks=palette))
    assert (pixels[0] == 255).all() and (pixels[5] == [9, 8, 7]).all()
    rgb = np.zeros((SIDE, SIDE, 3), int)
    rgb[4:8] = 50
    pixels = opened(png(rgb, 2, chunks=part(b"tRNS", struct.pack(">HHH", 0, 0, 0))))
    assert (pixels[0] == 255).all() and (pixels[5] == 50).all()


def test_common_images_are_as_before():
    grey = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    assert (opened(png(grey, 0)) == grey[..., None]).all()
    rgb = np.random.default_rng(1).integers(0, 256, (SIDE, SIDE, 3))
    assert (opened(png(rgb, 2)) == rgb).all()
