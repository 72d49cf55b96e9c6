"""The ETL of images: a folder with broken files, and Parquet with the same images."""

from __future__ import annotations

import os
import shutil
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.data.images import MAX_BYTES, ImageEncoder
from howdah.data.lineage.rows import layout_of
from howdah.data.manifest import load_dataset
from howdah.data.record import decode_example, read_frames
from howdah.data.splits.shards import ShardSet
from howdah.errors import ConfigError, DataError, ModelError
from howdah.etl import pipeline
from tests.support.models.images import VIT_FILES, png, write_processor, write_shapes

pytestmark = pytest.mark.spark

GOOD = 40


def make_config(place, base, **data):
    """A configuration of images below `place`."""
    data = {"kind": "image", "dataset": str(place / "dataset"), **data}
    return from_dict(
        {
            "data": data,
            "model": {"base": str(base)},
            "training": {"framework": "torch"},
        }
    )


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> str:
    """What the ETL needs of a vision transformer: no weights."""
    return write_processor(str(tmp_path_factory.mktemp("vit")))


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header claims that many pixels."""
    whole = png(np.zeros((8, 8), np.uint8))
    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + whole[24:29]
    return whole[:16] + header + zlib.crc32(b"IHDR" + header).to_bytes(4, "big") + whole[33:]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Good images of two classes, and one of each kind that is rejected."""
    place = tmp_path_factory.mktemp("images")
    write_shapes(str(place), GOOD)
    above = place / "above"
    whole = (above / "0000.png").read_bytes()
    rng = np.random.default_rng(9)
    wide = rng.integers(0, 256, (40, 90, 3), dtype=np.uint8)
    (above / "wide.jpg").write_bytes(png(wide, "JPEG"))
    (above / "truncated.png").write_bytes(whole[: len(whole) // 2])
    (above / "notes.txt").write_text("no image")
    (above / "empty.png").write_bytes(b"")
    (above / "bomb.png").write_bytes(bomb(10_000, 10_000))
    (above / "larger.png").write_bytes(bomb(60_000, 60_000))  # above Pillow's own limit
    (above / "tiny.png").write_bytes(png(np.zeros((4, 30), np.uint8)))
    (above / "huge.png").write_bytes(whole)
    os.truncate(above / "huge.png", MAX_BYTES + 1)  # zeros that take no room on the disk
    shutil.copy(above / "0000.png", above / "again.png")
    (place / "above" / "twice.bmp").write_bytes(png(wide, "BMP"))
    (place / "left" / "twice.png").write_bytes(png(wide, "PNG"))
    (place / "outside.png").write_bytes(png(rng.integers(0, 256, (20, 20), dtype=np.uint8)))
    (above / "_hidden.png").write_bytes(whole)
    return place


OPTIONS = {"split": {"validation": 0.2, "test": 0.2}}


@pytest.fixture(scope="module")
def made(spark, tmp_path_factory, folder, base):
    """(result, lines of progress) of that folder."""
    config = make_config(
        tmp_path_factory.mktemp("made"), base, source=str(folder), num_shards=2, **OPTIONS
    )
    lines: list[str] = []
    return pipeline.run(config, progress=lines.append), lines


def rows_of(result):
    """{id: (split, label, pixels)} as the shards hold them."""
    dataset = load_dataset(result.path)
    out = {}
    for split, entries in dataset.manifest.splits.items():
        for entry in entries:
            data = storage.read_bytes(dataset.shard_path(entry))
            for _, payload in read_frames(data, entry.name):
                row = decode_example(payload, layout_of(dataset.manifest))
                label = dataset.manifest.labels[row.label]
                out[row.id.decode()] = (split, label, row.input_ids.astype(np.uint8))
    return out


def test_what_is_no_image_is_rejected_with_its_reason(made):
    result, _ = made
    assert result.manifest.quality["drops"] == {
        "empty": 1, "undecodable": 2, "too_small": 1, "too_large": 3, "bad_label": 1,
        "label_conflict": 2, "exact_duplicate": 1,
    }  # fmt: skip
    rejects = pa.concat_tables(
        pq.read_table(storage.join(result.path, name))
        for name in result.manifest.quality["reject_files"]
    ).to_pylist()
    reasons = {row["text"]: (row["reason"], row["detail"]) for row in rejects}
    assert reasons["above/bomb.png"] == ("too_large", "10000 x 10000 pixels")
    assert reasons["above/tiny.png"] == ("too_small", "30 x 4 pixels")
    assert reasons["above/larger.png"][0] == "too_large"
    assert reasons["above/empty.png"][0] == "empty" and reasons["above/huge.png"][0] == "too_large"
    assert reasons["above/truncated.png"][0] == reasons["above/notes.txt"][0] == "undecodable"
    assert reasons["outside.png"] == ("bad_label", "no label")
    assert reasons["above/again.png"] == ("exact_duplicate", "same text as above/0000.png")
    assert not any("_hidden" in row["id"] for row in rejects)


def test_shards_hold_each_image_once_as_resized_pixels(made, folder, base):
    result, _ = made
    rows, encoder = rows_of(result), ImageEncoder.load(base)
    assert len(rows) == GOOD + 1 and {label for _, label, _ in rows.values()} == {"above", "left"}
    for name in ("above/0000.png", "left/0001.png", "above/wide.jpg"):
        _, label, pixels = rows[name]
        assert label == name.split("/")[0]
        expected = encoder.decode((folder / name).read_bytes())
        np.testing.assert_array_equal(pixels, expected)
    manifest = result.manifest
    assert manifest.kind == "image" and manifest.record.image.values == 16 * 16 * 3
    assert manifest.max_length == encoder.tokens == 5  # four patches and the class
    assert manifest.cleaning == {} and len(manifest.splits["train"]) == 2
    page = storage.read_text(result.report_path)
    assert "Images of 16 × 16 pixels" in page and "undecodable" in page


def test_the_reader_gathers_the_same_pixels(made):
    result, _ = made
    shards = ShardSet(load_dataset(result.path), "train")
    assert {length for part in shards.lengths for length in part.tolist()} == {5}
    shard = np.array([0, 1, 0])
    row = np.array([1, 0, 0])
    pixels = shards.gather_images(shard, row)
    for at in range(3):
        one = shards.example(int(shard[at]), int(row[at])).input_ids
        np.testing.assert_array_equal(pixels[at], one)


@pytest.fixture(scope="module")
def table(folder, tmp_path_factory):
    """The folder's files as a struct column of Parquet, as datasets of images have them."""
    rows = []
    for where, _, names in os.walk(folder):
        for name in sorted(names):
            path = os.path.relpath(os.path.join(where, name), folder)
            data = (folder / path).read_bytes()
            if not name.startswith("_"):
                rows.append(
                    {
                        "key": path,
                        "image": {"bytes": data or None, "path": path},
                        "label": path.split("/")[0] if "/" in path else None,
                    }
                )
    place = tmp_path_factory.mktemp("table")
    pq.write_table(pa.Table.from_pylist(rows), place / "rows.parquet")
    return place / "rows.parquet"


@pytest.mark.full
def test_parquet_gives_the_same_rows_as_the_folder(made, spark, tmp_path, table, base):
    columns = {"image": "image.bytes", "id": "key"}
    config = make_config(tmp_path, base, source=str(table), columns=columns, **OPTIONS)
    result = pipeline.run(config, progress=lambda line: None)
    mine, theirs = rows_of(result), rows_of(made[0])
    assert mine.keys() == theirs.keys()
    for key, (split, label, pixels) in mine.items():
        assert (split, label) == theirs[key][:2]
        np.testing.assert_array_equal(pixels, theirs[key][2])
    assert result.manifest.quality["drops"] == made[0].manifest.quality["drops"]
    again = pipeline.run(config, progress=lambda line: None)
    assert again.unchanged and again.path == result.path


@pytest.mark.full
def test_a_key_that_looks_like_a_copy_s_is_one_row_with_its_own_pixels(spark, tmp_path, base):
    rng = np.random.default_rng(4)
    keys = ["a", "a", "a#2", *(f"k{n}" for n in range(20))]
    images = [png(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)) for _ in keys]
    rows = [
        {"key": key, "image": image, "label": "xy"[n % 2]}
        for n, (key, image) in enumerate(zip(keys, images, strict=True))
    ]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    config = make_config(
        tmp_path, base, source=str(tmp_path / "rows.parquet"),
        columns={"image": "image", "id": "key"}, **OPTIONS,
    )  # fmt: skip
    result = pipeline.run(config, progress=lambda line: None)
    made = rows_of(result)
    total = sum(map(result.manifest.rows, result.manifest.splits))
    assert set(made) == set(keys) and total == len(made) == len(keys) - 1
    assert result.manifest.quality["drops"] == {"duplicate_id": 1}
    expected = ImageEncoder.load(base).decode(images[2])
    np.testing.assert_array_equal(made["a#2"][2], expected)


@pytest.mark.full
def test_ids_of_images_without_a_key_do_not_depend_on_partitions(spark, tmp_path, table, base):
    splits = []
    for parts in (1, 5):
        place = tmp_path / str(parts)
        conf = {"spark.sql.shuffle.partitions": str(parts)}
        config = make_config(
            place, base, source=str(table), columns={"image": "image.bytes"},
            spark={"conf": conf}, **OPTIONS,
        )  # fmt: skip
        result = pipeline.run(config, progress=lambda line: None)
        splits.append({k: (s, label) for k, (s, label, _) in rows_of(result).items()})
    assert splits[0] == splits[1] and len(splits[0]) == GOOD + 1


@pytest.mark.full
def test_files_of_a_pattern_are_labelled_by_their_directories(spark, tmp_path, folder, base):
    config = make_config(tmp_path, base, source=f"{folder}/*/00*.png", **OPTIONS)
    result = pipeline.run(config, progress=lambda line: None)
    rows = rows_of(result)
    assert len(rows) == GOOD and all(key.split("/")[0] == one[1] for key, one in rows.items())


def test_bad_sources_and_models_are_refused(spark, tmp_path, table, base, tiny_model_dir):
    def run(**changes):
        model = changes.pop("base", base)
        return pipeline.run(make_config(tmp_path, model, **changes), progress=lambda line: None)

    with pytest.raises(DataError, match="another type") as caught:
        run(source=str(table))
    assert "image.bytes" in caught.value.remedy
    with pytest.raises(DataError, match="no column 'pixels'"):
        run(source=str(table), columns={"image": "pixels"})
    with pytest.raises(ModelError, match="which reads texts"):
        run(source=str(table), base=tiny_model_dir)
    mixed = tmp_path / "mixed"
    shutil.copytree(table.parent, mixed / "a")
    (mixed / "a" / "x.png").write_bytes(png(np.zeros((9, 9), np.uint8)))
    with pytest.raises(ConfigError, match="Parquet files and others"):
        run(source=str(mixed))
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="the source is empty"):
        run(source=str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"preprocessor_config.json": {"size": {"height": 8, "width": 8}}}, "not supported"),
        ({"preprocessor_config.json": {"do_center_crop": True}}, "not supported"),
        ({"preprocessor_config.json": {"image_mean": [0.5]}}, "not supported"),
        ({"preprocessor_config.json": {"image_std": [0.5, None, 0.5]}}, "not supported"),
        ({"preprocessor_config.json": {"rescale_factor": [1]}}, "not supported"),
        ({"preprocessor_config.json": None}, "no preprocessor_config.json"),
        ({"config.json": {"num_channels": 1}}, "not supported"),
        ({"config.json": {"patch_size": 7}}, "not supported"),
        ({"config.json": {"model_type": "albert"}}, "family that is not known"),
    ],
)
def test_another_preparation_of_images_is_refused(change, message, base):
    import json

    files = {name: (storage.read_bytes(storage.join(base, name))) for name in VIT_FILES}
    for name, fields in change.items():
        if fields is None:
            del files[name]
        else:
            files[name] = json.dumps(json.loads(files[name]) | fields).encode()
    with pytest.raises(ModelError, match=message):
        ImageEncoder(files, "model")
