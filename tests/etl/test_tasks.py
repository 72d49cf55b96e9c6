"""Several labels a row, targets, and pairs of texts: from the source to the shards."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from howdah import storage
from howdah.config import loader
from howdah.config.data import CleanOptions, QualityOptions
from howdah.data.clean import joined
from howdah.data.encode import Encoder
from howdah.data.manifest import load_dataset
from howdah.data.record import RecordLayout, ShardWriter, decode_example, read_frames
from howdah.data.shard_index import ShardIndex
from howdah.errors import ConfigError, DataError
from howdah.etl import pipeline
from howdah.etl.rows import gate, minhash
from howdah.etl.rows.gate import RowRules
from tests.etl.test_pipeline import sentences

MULTI = RowRules(task="multi_label", names={"1": "world", "2": "sports"}, separator="|")


def judged(text, label, rules):
    verdict = gate.judge(text, label, CleanOptions(), QualityOptions(), rules)
    return verdict.label if verdict.reason is None else (verdict.reason, verdict.detail)


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("2 | 1|2", '["sports","world"]'), ('["1"]', '["world"]'), ("[1, 2]", '["sports","world"]'),
        ("[]", "[]"), ("", ("bad_label", "no label")), (None, ("bad_label", "no label")),
        ("1|3", ("bad_label", "3")), ("[true]", ("bad_label", "[true]")),
        ("[1", ("bad_label", "[1")),
    ],
)  # fmt: skip
def test_a_rows_labels_are_a_set(label, expected):
    assert judged("some text", label, MULTI) == expected


@pytest.mark.parametrize(
    ("label", "expected"),
    [
        ("0.50", "0.5"), (" -3", "-3.0"), ("-0", "0.0"), ("1e-3", "0.001"),
        ("NaN", ("bad_target", "NaN")), ("Infinity", ("bad_target", "Infinity")),
        ("1e39", ("bad_target", "1e39")), ("1,5", ("bad_target", "1,5")),
        (None, ("bad_target", "no label")),
    ],
)  # fmt: skip
def test_a_target_is_a_finite_number(label, expected):
    assert judged("some text", label, RowRules(task="regression")) == expected


def test_each_side_of_a_pair_is_judged_and_named():
    rules = RowRules(pairs=True)
    assert judged(joined("one text", "and another"), "a", rules) == "a"
    assert judged(joined("one text", " "), "a", rules)[0] == "empty"
    assert judged(joined("one text", "x"), "a", rules) == ("too_short", "text_pair: 1 characters")
    assert judged(joined("lost \ufffd", "fine"), "a", rules)[1].startswith("text: replacement")


def test_the_same_words_on_the_other_side_are_no_copy():
    texts = [joined("a b", "c"), joined("a", "b c"), joined("c", "a b"), joined("a b", "c")]
    assert len({gate.text_key(text) for text in texts}) == 3
    one, moved, turned, same = minhash.sets(texts)
    assert minhash.jaccard(one, same) == 1.0
    assert minhash.jaccard(one, moved) < 0.6 and minhash.jaccard(one, turned) < 0.3


@pytest.mark.parametrize(
    ("task", "labels"),
    [("multi_label", [(0, 2), (), (1,)]), ("regression", [0.5, -3.25, 1e-3])],
)
def test_records_and_index_hold_them(tmp_path, task, labels):
    layout = RecordLayout(task=task)
    rows, ids = [np.arange(n + 1) for n in range(3)], [b"a", b"b", b"c"]
    with open(tmp_path / "s", "wb") as file:
        writer = ShardWriter(file, layout)
        writer.write(rows, labels, ids)
        stats = writer.close()
    frames = read_frames((tmp_path / "s").read_bytes(), "s")
    records = [decode_example(payload, layout) for _, payload in frames]
    assert [one.id for one in records] == ids
    assert [one.label for one in records] == [
        pytest.approx(label) if task == "regression" else label for label in labels
    ]
    index = ShardIndex.from_bytes(stats.index, "i")
    assert index.lengths.tolist() == [1, 2, 3]
    if task == "multi_label":
        assert (index.starts.tolist(), index.labels.tolist()) == ([0, 2, 2, 3], [0, 2, 1])
        assert stats.class_counts == {"0": 1, "1": 1, "2": 1} and stats.target is None
    else:
        assert index.labels.tolist() == np.float32(labels).tolist()
        assert (stats.target.least, stats.target.most) == (-3.25, 0.5) and not stats.class_counts
    for cut in (9, len(stats.index) - 2):
        with pytest.raises(DataError, match="index is not valid"):
            ShardIndex.from_bytes(stats.index[:cut], "i")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"task": "regression", "labels": ["a", "b"]}, "labels name classes"),
        ({"task": "multi_label", "format": "tfrecord"}, "records of another writer"),
        ({"task": "multi_label", "balance": "upsample"}, "one class a row"),
        ({"task": "regression", "dedup": {"conflict": "majority"}}, "counts labels"),
        ({"task": "regression", "expect": {"min_rows_per_class": 3}}, "counts labels"),
        ({"kind": "image", "columns": {"text_pair": "b"}}, "for texts"),
        ({"columns": {"text": ["a", "b"], "label": "b"}}, "the same column, 'b'"),
        ({"columns": {"text_pair": "label"}}, "the same column, 'label'"),
        ({"format": "tfrecord", "columns": {"text_pair": "b"}}, "ids of both sides"),
    ],
)  # fmt: skip
def test_what_means_nothing_for_a_task_is_refused(data, message):
    with pytest.raises(ConfigError, match=message):
        loader.from_dict({"data": data, "training": {"framework": "torch"}})


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"evaluation": {"metric": "accuracy"}}, "evaluation.metric accuracy is not computed"),
        ({"gate": {"minimum": {"ece": 0.1}}}, "gate.minimum ece is not computed"),
        ({"training": {"label_smoothing_factor": 0.1}}, "label_smoothing_factor"),
        ({"training": {"class_weights": "balanced"}}, "class_weights weigh labels"),
        ({"gate": {"min_over_baseline": 0.0}}, "howdah evaluate --baseline"),
    ],
)  # fmt: skip
def test_other_sections_are_held_to_the_task(config, message):
    with pytest.raises(ConfigError, match=message):
        loader.from_dict({"data": {"task": "regression"}, **config})


def test_the_metric_that_is_not_given_is_the_tasks():
    of = {
        task: loader.from_dict({"data": {"task": task}}) for task in ("multi_label", "regression")
    }
    assert {task: config.evaluation.metric for task, config in of.items()} == {
        "multi_label": "micro_f1", "regression": "mse",
    }  # fmt: skip
    again = loader.from_dict(of["regression"].model_dump(mode="json"))
    assert again == of["regression"]


# ------------------------------------------------------------------------------------ with Spark
def made(tmp_path, base, table, **data):
    source = str(tmp_path / "rows.parquet")
    pq.write_table(table, source)
    settings = {"source": source, "dataset": str(tmp_path / "dataset"), **data}
    settings.setdefault("split", {"validation": 0.2, "test": 0.2})
    config = loader.from_dict({"data": settings, "model": {"base": base}})
    return pipeline.run(config, progress=lambda line: None)


def examples(result):
    dataset = load_dataset(result.path)
    layout = RecordLayout(task=dataset.manifest.task, ids_dtype=dataset.manifest.record.ids_dtype)
    for split, entries in dataset.manifest.splits.items():
        for entry in entries:
            data = storage.read_bytes(dataset.shard_path(entry))
            for _, payload in read_frames(data, entry.name):
                yield split, decode_example(payload, layout)


@pytest.mark.spark
@pytest.mark.full
def test_pairs_of_several_labels_become_a_dataset(spark, tmp_path, tiny_model_dir):
    texts = sentences(120)
    sets = [[["rare"], ["a", "b"], ["b"], []][0 if n < 6 else 1 + n % 3] for n in range(120)]
    others = [text.upper()[::-1] for text in texts]
    extra = [
        (texts[10], others[10], sets[10]),
        (texts[11], others[11], ["a"]),
        (texts[12], None, ["a"]),
    ]
    extra += [
        (texts[13] + " " + others[13][:3], others[13][3:], ["b"])
    ]  # another pair, no conflict
    table = pa.table(
        {
            "text": [*texts, *(row[0] for row in extra)],
            "other": [*others, *(row[1] for row in extra)],
            "label": pa.array([*sets, *(row[2] for row in extra)], pa.list_(pa.string())),
        }
    )  # fmt: skip
    result = made(
        tmp_path, tiny_model_dir, table, task="multi_label",
        columns={"text_pair": "other"}, max_length=24, dedup={"near": False},
        split={"validation": 0.2, "test": 0.2, "stratify": 3},
    )  # fmt: skip
    manifest = result.manifest
    assert (manifest.task, manifest.pairs, manifest.labels) == (
        "multi_label",
        True,
        ["a", "b", "rare"],
    )
    assert manifest.quality["drops"] == {"empty": 1, "label_conflict": 2, "exact_duplicate": 1}
    rows = list(examples(result))
    assert len(rows) == manifest.quality["kept"] == 120
    encoder = Encoder.load(tiny_model_dir)
    ids = encoder.encode_pairs(list(zip(texts, others, strict=True)), 24)
    names = manifest.labels
    expected = {tuple(row.tolist()): set(of) for row, of in zip(ids, sets, strict=True)}
    for _, example in rows:
        of = expected.get(tuple(example.input_ids.tolist()))
        assert of is None or of == {names[number] for number in example.label}
    counts = {}
    for split, example in rows:
        for number in example.label:
            counts[split, names[number]] = counts.get((split, names[number]), 0) + 1
    assert all(counts[split, "rare"] for split in ("train", "validation", "test"))
    for split, entries in manifest.splits.items():
        assert sum(entry.class_counts.get("0", 0) for entry in entries) == counts[split, "a"]
    report = json.loads(storage.read_text(storage.join(result.path, "report.json")))
    assert set(report["samples"]) == {"a", "b", "rare"}
    assert all(" [SEP] " in text for of in report["samples"].values() for text in of)


@pytest.mark.spark
@pytest.mark.full
def test_targets_become_a_dataset(spark, tmp_path, tiny_model_dir):
    texts = sentences(60)
    targets = [n / 10 for n in range(60)]
    more = [
        (texts[0], 0.05),
        (texts[1], 3.0),
        ("a text of its own here", float("nan")),
        ("none at all here", None),
    ]
    table = pa.table(
        {"text": [*texts, *(t for t, _ in more)], "label": [*targets, *(v for _, v in more)]}
    )
    result = made(
        tmp_path, tiny_model_dir, table, task="regression",
        dedup={"near": False, "conflict": {"tolerance": 0.1}},
        split={"validation": 0.2, "test": 0.2, "stratify": 3},
    )  # fmt: skip
    manifest = result.manifest
    assert (manifest.task, manifest.labels) == ("regression", ["label"])
    assert manifest.quality["drops"] == {"bad_target": 2, "label_conflict": 2, "exact_duplicate": 1}
    targets_of_records = sorted(example.label for _, example in examples(result))
    assert len(targets_of_records) == manifest.quality["kept"] == 59
    assert targets_of_records[1:] == pytest.approx(targets[2:])
    totals = [entry.target for entries in manifest.splits.values() for entry in entries]
    assert sum(one.total for one in totals) == pytest.approx(sum(targets_of_records))
    page = storage.read_text(storage.join(result.path, "report.html"))
    assert "standard deviation" in page
