"""Whole ETL runs on a local Spark: what a committed dataset holds, and what survives faults."""

import csv
import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from howdah import storage
from howdah.config import loader as config_module
from howdah.data.encode import Encoder
from howdah.data.manifest import load_dataset
from howdah.data.record import RecordLayout, decode_example, read_frames
from howdah.errors import DataError, HowdahError
from howdah.etl import pipeline, version
from howdah.etl.rows import draw
from howdah.etl.workspace.staging import attempt_name
from howdah.etl.write import shards
from tests.fixtures.spark import FEW_JOBS

pytestmark = pytest.mark.spark

SUBJECTS = ["the market", "a goal", "the council", "our river", "this engine", "one singer"]
VERBS = ["rises over", "falls below", "returns to", "forgets about", "argues with", "builds on"]
OBJECTS = ["old bonds", "the keeper", "new taxes", "cold rain", "a turbine", "her album", "all"]


def sentences(count):
    """`count` different texts; a number in each word keeps them far apart."""
    out = []
    for n in range(count):
        words = [SUBJECTS[n % 6], VERBS[n // 6 % 6], OBJECTS[n // 36 % 7]]
        words += [str(n * prime) for prime in (7919, 104729, 1299709, 15485863)]
        out.append(" ".join(words))
    return out


def write_csv(path, rows, header=("text", "label")):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        if header:
            writer.writerow(header)
        writer.writerows(rows)
    return str(path)


def make_config(tmp_path, base, **data):
    settings = {"dataset": str(tmp_path / "dataset"), **FEW_JOBS, **data}
    return config_module.from_dict({"data": settings, "model": {"base": base}})


def run(config):
    lines = []
    result = pipeline.run(config, progress=lines.append)
    return result, lines


def rows_of(result):
    """{split: [Example, ...]} as the shards hold them, in order."""
    dataset = load_dataset(result.path)
    layout = RecordLayout(ids_dtype=dataset.manifest.record.ids_dtype)
    out = {}
    for split, entries in dataset.manifest.splits.items():
        out[split] = []
        for entry in entries:
            data = storage.read_bytes(dataset.shard_path(entry))
            assert len(data) == entry.bytes
            out[split] += [decode_example(p, layout) for _, p in read_frames(data, entry.name)]
    return out


@pytest.fixture(scope="module")
def dirty(spark, tmp_path_factory, tiny_model_dir):
    """One run over a dirty CSV: (config, result, progress lines, the good texts)."""
    place = tmp_path_factory.mktemp("dirty")
    good = sentences(240)
    rows = [(text, "ab"[n % 3 == 0]) for n, text in enumerate(good)]
    rows += [(rows[0][0], rows[0][1]), (rows[1][0] + "!", rows[1][1])]  # exact, near
    rows += [("contested text of two labels", "a"), ("contested text of two labels", "b")]
    rows += [("", "a"), ("x", "b"), ("y" * 300, "a"), ("lost \ufffd letter here", "a")]
    rows += [("a text without a label", ""), ('multi\nline, "quoted" &lt;b&gt; text  #36;5', "b")]
    source = write_csv(place / "rows.csv", rows)
    config = make_config(
        place,
        tiny_model_dir,
        source=source,
        max_length=32,
        dedup={},
        num_shards=3,
        quality={"max_characters": 250},
        split={"validation": 0.2, "test": 0.2},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "howdah.etl.build._MANY_ROWS", 1
        )  # of a large source the gate's rows go early
        patch.setattr("howdah.etl.rows.leakage.SAMPLE", 1_000)
        result, lines = run(config)
    return config, result, lines, good


def test_drops_are_counted_and_kept_with_their_reason(dirty):
    _, result, _, good = dirty
    quality = result.manifest.quality
    assert quality["read"] == len(good) + 10
    assert quality["drops"] == {
        "wrong_encoding": 1,
        "empty": 1,
        "too_short": 1,
        "too_long": 1,
        "bad_label": 1,
        "label_conflict": 2,
        "exact_duplicate": 1,
        "near_duplicate": 1,
    }
    written = sum(map(result.manifest.rows, result.manifest.splits))
    assert quality["kept"] == written == len(good) + 1
    table = pa.concat_tables(
        pq.read_table(storage.local_path(storage.join(result.path, name)))
        for name in quality["reject_files"]
    ).to_pylist()
    reasons = sorted(row["reason"] for row in table)
    assert reasons == sorted(r for r, n in quality["drops"].items() for _ in range(n))
    by_reason = {row["reason"]: row for row in table}
    assert by_reason["bad_label"]["text"] == "a text without a label"
    assert by_reason["exact_duplicate"]["detail"].startswith("same text as ")


def test_shards_hold_each_kept_row_once_encoded_and_evenly(dirty, tiny_model_dir):
    config, result, _, good = dirty
    manifest = result.manifest
    rows = rows_of(result)
    examples = [example for split in rows.values() for example in split]
    ids = [example.id for example in examples]
    assert len(set(ids)) == len(ids) == manifest.quality["kept"]
    sizes = [entry.rows for entry in manifest.splits["train"]]
    assert len(sizes) == 3 and max(sizes) - min(sizes) <= 1
    expected = Encoder.load(tiny_model_dir).encode(
        [*good, 'multi line, "quoted" <b> text $5'], config.data.max_length
    )
    key = sorted(tuple(row.tolist()) for row in expected)
    assert sorted(tuple(example.input_ids.tolist()) for example in examples) == key
    counts = {}
    for split, entries in manifest.splits.items():
        for entry in entries:
            for label, count in entry.class_counts.items():
                counts[split, int(label)] = counts.get((split, int(label)), 0) + count
    assert counts == {
        (split, label): sum(e.label == label for e in rows[split])
        for split in rows
        for label in {e.label for e in rows[split]}
    }
    assert manifest.labels == ["a", "b"]


def test_the_report_says_what_the_manifest_says(dirty):
    _, result, _, _ = dirty
    value = json.loads(storage.read_text(storage.join(result.path, "report.json")))
    assert value["splits"]["train"]["rows"] == result.manifest.rows("train")
    assert value["quality"]["drops"] == result.manifest.quality["drops"]
    assert set(value["samples"]) == {"a", "b"}
    page = storage.read_text(result.report_path)
    assert "label_conflict" in page and "<svg" in page and 'href="http' not in page
    assert page.count("<script") == 1  # the page's own


def test_running_twice_changes_nothing_and_says_so(dirty):
    config, first, _, _ = dirty
    before = {e.name: (e.size, e.modified) for e in storage.list_dir(first.path)}
    second, lines = run(config)
    assert second.unchanged and second.path == first.path
    assert lines[-1] == f"unchanged: {first.path}"
    assert {e.name: (e.size, e.modified) for e in storage.list_dir(first.path)} == before


def test_tensorflow_reads_the_shards(dirty):
    _, result, _, _ = dirty
    script = """
import sys, json
import tensorflow as tf
kinds = {"input_ids": tf.string, "id": tf.string, "label": tf.int64, "length": tf.int64}
features = {name: tf.io.FixedLenFeature([], kind) for name, kind in kinds.items()}
out = []
for record in tf.data.TFRecordDataset(sys.argv[1:]):
    row = tf.io.parse_single_example(record, features)
    ids = tf.io.decode_raw(row["input_ids"], tf.uint16)
    out.append([row["id"].numpy().decode(), int(row["label"]), ids.numpy().tolist()])
print(json.dumps(out))
"""
    dataset = load_dataset(result.path)
    paths = [dataset.shard_path(entry) for entry in result.manifest.splits["train"]]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}
    answer = subprocess.run(
        [sys.executable, "-c", script, *paths],
        check=True, capture_output=True, text=True, timeout=200, env=environment,
    )  # fmt: skip
    ours = [[e.id.decode(), e.label, e.input_ids.tolist()] for e in rows_of(result)["train"]]
    assert json.loads(answer.stdout.splitlines()[-1]) == ours


def test_no_cluster_of_duplicates_crosses_a_split(spark, tmp_path, tiny_model_dir):
    # each text under both labels, slightly changed: all are kept, none may be torn apart
    rows = []
    for n, text in enumerate(sentences(120)):
        padded = f"{text} and some more words that make both of them long enough to be alike"
        rows += [(f"a{n}", padded, "a"), (f"b{n}", padded + ".", "b")]
    source = write_csv(tmp_path / "rows.csv", rows, header=("key", "text", "label"))
    config = make_config(
        tmp_path,
        tiny_model_dir,
        source=source,
        columns={"id": "key"},
        dedup={},
        split={"validation": 0.3, "test": 0.3},
    )
    result, _ = run(config)
    assert result.manifest.quality["near_duplicates"]["clusters"] == 120
    place = {e.id.decode(): split for split, rows in rows_of(result).items() for e in rows}
    torn = [n for n in range(120) if place.get(f"a{n}") != place.get(f"b{n}")]
    assert len(place) == 240 and not torn
    assert set(place.values()) == {"train", "validation", "test"}


def test_a_race_for_the_manifest_has_one_winner(spark, tmp_path, tiny_model_dir, monkeypatch):
    source = write_csv(tmp_path / "r.csv", [(t, "ab"[n % 2]) for n, t in enumerate(sentences(40))])
    config = make_config(tmp_path, tiny_model_dir, source=source)
    real = shards.write_rejects
    inner = []

    def overtaken(*args):
        # while this run has its shards on storage, another one makes the same version whole
        monkeypatch.setattr(shards, "write_rejects", real)
        inner.append(run(config)[0])
        return real(*args)

    monkeypatch.setattr(shards, "write_rejects", overtaken)
    outer, lines = run(config)
    assert not inner[0].unchanged and outer.unchanged
    assert "another run has made this version" in lines[-1]
    assert outer.manifest == inner[0].manifest
    named = {e.name for s in outer.manifest.splits.values() for e in s}
    files = {e.name for e in storage.list_dir(outer.path) if e.name.endswith(".tfrecord")}
    assert files == named
    assert sum(map(len, rows_of(outer).values())) == 40


def test_a_failed_run_leaves_nothing(spark, tmp_path, tiny_model_dir, monkeypatch):
    source = write_csv(tmp_path / "r.csv", [(t, "ab"[n % 2]) for n, t in enumerate(sentences(20))])
    config = make_config(tmp_path, tiny_model_dir, source=source)

    def full(*_):
        raise HowdahError("no space left")

    monkeypatch.setattr(pipeline, "commit", full)
    with pytest.raises(HowdahError, match="no space"):
        run(config)
    assert [e.name for e in storage.list_dir(config.data.dataset)] == []


def test_a_run_whose_shards_were_swept_is_not_committed(
    spark, tmp_path, tiny_model_dir, monkeypatch
):
    """Another run took it for dead: its lease had expired while storage was away."""
    source = write_csv(tmp_path / "r.csv", [(t, "ab"[n % 2]) for n, t in enumerate(sentences(20))])
    config = make_config(tmp_path, tiny_model_dir, source=source)
    real = pipeline.report.write

    def swept(version, *args):
        real(version, *args)
        for entry in storage.list_dir(version):
            if entry.name.endswith(".tfrecord"):
                storage.remove(entry.path)

    monkeypatch.setattr(pipeline.report, "write", swept)
    with pytest.raises(DataError, match="a file of this run is missing or changed"):
        run(config)
    assert storage.list_dir(config.data.dataset) == []


def test_a_source_that_changes_while_it_is_read_is_refused(
    spark, tmp_path, tiny_model_dir, monkeypatch
):
    rows = [(t, "ab"[n % 2]) for n, t in enumerate(sentences(20))]
    source = write_csv(tmp_path / "r.csv", rows)
    config = make_config(tmp_path, tiny_model_dir, source=source)
    real = shards.write_rejects

    def grow(*args):
        write_csv(source, [*rows, ("one more row of text", "a")])
        return real(*args)

    monkeypatch.setattr(shards, "write_rejects", grow)
    with pytest.raises(DataError, match="changed while it was read"):
        run(config)
    assert storage.list_dir(config.data.dataset) == []


@pytest.mark.full  # in every run: test_shards.py
@pytest.mark.parametrize("how", ["downsample", "upsample"])
def test_balance_touches_training_rows_only(spark, tmp_path, tiny_model_dir, monkeypatch, how):
    monkeypatch.setattr(version, "BALANCE_RATIO", 2.0)
    rows = [(t, "rare" if n % 8 == 0 else "often") for n, t in enumerate(sentences(160))]
    source = write_csv(tmp_path / "r.csv", rows)
    plain, _ = run(make_config(tmp_path, tiny_model_dir, source=source))
    config = make_config(tmp_path, tiny_model_dir, source=source, balance=how)
    result, _ = run(config)
    before, after = rows_of(plain), rows_of(result)
    number = {name: n for n, name in enumerate(result.manifest.labels)}
    counts = [sum(e.label == number[name] for e in after["train"]) for name in ("often", "rare")]
    old = [sum(e.label == number[name] for e in before["train"]) for name in ("often", "rare")]
    assert counts == ([2 * old[1], old[1]] if how == "downsample" else [old[0], -(-old[0] // 2)])
    ids = [e.id for e in after["train"]]
    assert len(set(ids)) == len(ids)
    originals = {e.id: e.input_ids.tolist() for e in before["train"]}
    for example in after["train"]:
        assert example.input_ids.tolist() == originals[example.id.split(b"#")[0]]
    for split in ("validation", "test"):
        assert [e.id for e in before[split]] == [e.id for e in after[split]]


def test_positions_are_exact_with_many_buckets(spark, tmp_path, tiny_model_dir, monkeypatch):
    source = write_csv(tmp_path / "r.csv", [(t, "ab"[n % 2]) for n, t in enumerate(sentences(90))])
    one, _ = run(make_config(tmp_path / "one", tiny_model_dir, source=source, num_shards=4))
    monkeypatch.setattr(draw, "ROWS_PER_BUCKET", 5)
    two, _ = run(make_config(tmp_path / "two", tiny_model_dir, source=source, num_shards=4))
    for split in rows_of(one):
        assert [e.id for e in rows_of(one)[split]] == [e.id for e in rows_of(two)[split]]
    assert [e.crc32c for e in one.manifest.splits["train"]] == [
        e.crc32c for e in two.manifest.splits["train"]
    ]
    order = [e.id for e in rows_of(one)["train"]]
    assert order != sorted(order)


# --------------------------------------------------------------------------- adopted TFRecords
def test_records_of_another_writer_become_a_dataset(spark, tmp_path, tiny_model_dir):
    from howdah.data.record import Columns, encode_examples, frame

    encoder = Encoder.load(tiny_model_dir)
    texts = sentences(30)
    encoded = encoder.encode(texts, 40)
    padded = [np.pad(ids, (0, 40 - len(ids)), constant_values=encoder.pad_id) for ids in encoded]
    foreign = RecordLayout(
        ids_dtype="int64_list", columns=Columns(input_ids="ids", label="y", length=None, id=None)
    )
    labels = [n % 2 for n in range(30)]
    payloads = encode_examples(padded, labels, [b""] * 30, layout=foreign)
    (tmp_path / "in").mkdir()
    for name, part in (("train-0", payloads[:20]), ("test-0", payloads[20:])):
        data = b"".join(map(frame, part))
        (tmp_path / "in" / f"{name}.tfrecord").write_bytes(data)
    config = make_config(
        tmp_path,
        tiny_model_dir,
        source=str(tmp_path / "in"),
        max_length=40,
        labels=["no", "yes"],
        tfrecord={"input_ids": "ids"},
        columns={"label": "y"},
    )
    result, _ = run(config)
    rows = rows_of(result)
    assert result.manifest.labels == ["no", "yes"]
    assert {split: len(part) for split, part in rows.items()} == {"train": 20, "test": 10}
    for split, part in rows.items():
        for example in part:
            name, number = example.id.decode().rsplit(":", 1)
            place = int(number) + (20 if name.startswith("test") else 0)
            assert split == name.partition("-")[0]
            assert example.input_ids.tolist() == encoded[place].tolist()
            assert example.label == labels[place]

    altered = bytearray((tmp_path / "in" / "test-0.tfrecord").read_bytes())
    altered[len(altered) // 2] ^= 1
    (tmp_path / "in" / "test-0.tfrecord").write_bytes(bytes(altered))
    with pytest.raises(DataError) as caught:
        run(config)
    assert "altered" in caught.value.what and "test-0.tfrecord, offset" in caught.value.where


def test_attempt_names_say_whose_they_are():
    name = attempt_name("train-00000-of-00002", "0badcafe", 7, "tfrecord")
    assert name == "train-00000-of-00002.0badcafe-7.tfrecord"
