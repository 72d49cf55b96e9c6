"""What `bench chaos` checks: each invariant is found broken when it is."""

import hashlib
import io
import json
import struct

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.benches.chaos import reading
from bench.benches.chaos.reading import Broken


class Files(reading.Hdfs):
    """Files that are not on HDFS: {path: bytes}."""

    def __init__(self, files):
        self.files = files

    def names(self, path):
        inside = [
            name.removeprefix(path + "/") for name in self.files if name.startswith(path + "/")
        ]
        return sorted({name.partition("/")[0] for name in inside})

    def read(self, path):
        return self.files[path]


# ------------------------------------------------------------------------------------ training
STEPS = [(number, 1.0 + 0.01 * (number % 3)) for number in range(1, 10)]


def test_steps_of_an_undisturbed_run_are_whole():
    reading.check_epochs(STEPS, 3)
    assert reading.check_steps(STEPS, dict(STEPS), 9) == 0
    lacking = STEPS[:3] + STEPS[5:]  # a killed rank's last lines
    assert reading.check_steps(lacking, dict(STEPS), 9) == 2


def test_what_is_done_again_takes_the_place_of_its_first_time():
    lines = [{"step": n, "loss": float(n)} for n in (1, 2, 3, 4)]
    lines += [{"step": 3, "split": "validation"}]
    lines += [{"step": n, "loss": n + 0.5} for n in (3, 4, 5)]
    steps = reading.losses(json.dumps(line).encode() for line in lines)
    assert steps == [(1, 1.0), (2, 2.0), (3, 3.5), (4, 4.5), (5, 5.5)]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([*STEPS[:4], *STEPS[3:]], "twice"),
        ([*STEPS[:4], STEPS[5], STEPS[4], *STEPS[6:]], "order"),
        (STEPS[:-1], "last step"),
        ([], "last step"),
        ([*STEPS[:4], (5, STEPS[5][1]), *STEPS[5:]], "other rows"),
    ],
)
def test_a_step_that_is_lost_doubled_or_of_other_rows(steps, words):
    with pytest.raises(Broken, match=words):
        reading.check_steps(steps, dict(STEPS), 9)


def test_an_epoch_that_leaves_a_row_out():
    with pytest.raises(Broken, match="same rows"):
        reading.check_epochs([*STEPS[:-1], (9, 1.02)], 3)


def checkpoint(data=b"weights", fields=None):
    entry = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} | (fields or {})
    manifest = json.dumps({"files": {"model.safetensors": entry}}).encode()
    return {"/c/step-200/manifest.json": manifest, "/c/step-200/model.safetensors": data}


def test_checkpoints():
    begun = {"/c/step-400.1-ab/model.safetensors": b"half"}  # of a killed rank: nothing reads it
    assert reading.check_checkpoints(Files(checkpoint() | begun), "/c") == 1
    for fields in ({"bytes": 3}, {"sha256": "0" * 64}):
        with pytest.raises(Broken, match=r"step-200: model\.safetensors"):
            reading.check_checkpoints(Files(checkpoint(fields=fields)), "/c")


# ------------------------------------------------------------------------------------ a dataset
def shard(*ids):
    payloads = [b"\x0a\x12id" + row_id.encode() + b"\x00text" for row_id in ids]
    return b"".join(struct.pack("<QI", len(p), 0) + p + b"crc." for p in payloads)


def dataset(*parts, newest=1):
    """A version for each part, which has its own shard and those before."""
    files, entries = {}, []
    for number, part in enumerate(parts):
        data = shard(*part)
        files[f"/d/v={number}/train-0"] = data
        entries.append({"name": "train-0", "version": f"v={number}", "bytes": len(data)})
        manifest = {"created": f"2026-01-0{number + 1}", "splits": {"train": list(entries)}}
        files[f"/d/v={number}/manifest.json"] = json.dumps(manifest).encode()
    return files


IDS = ["p0000-00000", "p0000-00001", "p0001-00000"]


def test_a_dataset_that_has_every_row_once():
    reading.check_dataset(Files(dataset(IDS[:2], IDS[2:])), "/d", set(IDS))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((IDS[:2], IDS[1:]), r"twice \['p0000-00001'\]"),
        ((IDS[:2], []), r"lost \['p0001-00000'\]"),
        ((IDS[:2], [*IDS[2:], "p0009-00000"]), r"unknown \['p0009-00000'\]"),
    ],
)
def test_rows_that_are_lost_or_doubled(parts, words):
    with pytest.raises(Broken, match=words):
        reading.check_dataset(Files(dataset(*parts)), "/d", set(IDS))


def test_a_torn_shard():
    files = dataset(IDS)
    files["/d/v=0/train-0"] = files["/d/v=0/train-0"][:-2]
    with pytest.raises(Broken, match="bytes"):
        reading.check_dataset(Files(files), "/d", set(IDS))
    with pytest.raises(Broken, match="middle of a record"):
        reading.records(shard(*IDS)[:-2])


# ------------------------------------------------------------------------- versions, partitions
def model(versions, history, current):
    files = {f"/m/v={number}/manifest.json": b"{}" for number in versions}
    for number, version in enumerate(history):
        files[f"/m/history/{number + 1:06d}.json"] = json.dumps({"version": version}).encode()
    return Files(files | {"/m/current.json": json.dumps({"version": current}).encode()})


def test_versions():
    reading.check_versions(model([1, 2], [1, 2], 2), "/m", 2)
    for files in (
        model([1, 2, 3], [1, 2], 2), model([1, 2], [1, 2, 2], 2), model([1, 2], [1, 2], 1),
        model([1], [1], 1),
    ):  # fmt: skip
        with pytest.raises(Broken, match="published once"):
            reading.check_versions(files, "/m", 2)


def scored(*rows):
    names = ("id", "label", "model_version")
    table = pa.table({name: [row[n] for row in rows] for n, name in enumerate(names)})
    file = io.BytesIO()
    pq.write_table(table, file)
    return {"/s/ds=1/part-0.parquet": file.getvalue(), "/s/ds=1/_SUCCESS": b""}


GOOD = [("a", "cat", 2), ("b", "cat", 2)]


@pytest.mark.parametrize(
    "rows",
    [
        [*GOOD, GOOD[0]], GOOD[:1], [*GOOD, ("c", "cat", 2)], [GOOD[0], ("b", "dog", 2)],
        [GOOD[0], ("b", "dog", 1)],
    ],
)  # fmt: skip
def test_a_partition_that_is_not_scored_once_by_one_version(rows):
    def label_of(version):
        return ("cat", "dog")[version % 2]

    reading.check_scored(Files(scored(*GOOD)), "/s/ds=1", {"a", "b"}, label_of)
    with pytest.raises(Broken):
        reading.check_scored(Files(scored(*rows)), "/s/ds=1", {"a", "b"}, label_of)
