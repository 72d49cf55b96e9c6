"""Lines about a new version's labels that need a look; the YAML in them does what it says."""

from types import SimpleNamespace

import pytest
import yaml

from howdah.config import loader as config_module
from howdah.etl import attention
from howdah.etl.rows import gate, labels
from tests.etl.test_pipeline import make_config, run, sentences, write_csv

NAMES = ["Account", "Billing", "N/A", "billing", "other: #1", "yes"]
COUNTS = {"train": {0: 4, 1: 3, 2: 5, 3: 60, 4: 9, 5: 2}, "validation": {3: 8, 4: 1}}


def shard(counts: dict[int, int]):
    return SimpleNamespace(class_counts={str(number): rows for number, rows in counts.items()})


def section(**data):
    return config_module.from_dict({"data": data}).data


def test_twins_missing_values_and_absent_classes_are_told_with_the_way_out():
    splits = {split: [shard(counts)] for split, counts in COUNTS.items()} | {"test": []}
    lacking = attention.absent(NAMES, splits)
    assert lacking == {name: ["validation"] for name in ("Account", "Billing", "N/A", "yes")}
    quality = {
        "similar_labels": labels.similar(NAMES), "labels_absent": lacking,
        "missing_value_labels": attention.missing_values(NAMES),
    }  # fmt: skip
    manifest = SimpleNamespace(quality=quality, labels=NAMES, splits=splits)
    said = list(attention.lines(manifest, section()))
    assert "'Billing', 'billing'" in said[0] and "'N/A'" in said[1]
    assert "no row in validation of 'Account', 'Billing', 'N/A', 'yes'" in said[2]
    at = next(n for n, line in enumerate(said) if "paste" in line)
    pasted = yaml.safe_load("\n".join(said[at + 1 :]))
    data = section(**pasted["data"])
    rules = labels.rules(data)

    def judged(label: str):
        return gate.judge("some text", label, data.clean, data.quality, rules)

    assert judged("Billing").label == judged("billing").label == "billing"  # the frequent one
    assert judged("N/A").reason == "bad_label" and judged("other: #1").label == "other: #1"
    assert judged("yes").label == "yes"  # not YAML's true
    labels.refuse_unknown(data, {"N/A": 5})  # it is rejected, and does not fail the run
    assert not any("paste" in line for line in attention.lines(manifest, data))  # they are mapped
    clean = SimpleNamespace(quality={}, labels=["a", "b"], splits=splits)
    assert list(attention.lines(clean, section())) == []


@pytest.mark.spark
def test_a_run_ends_with_what_to_look_at(spark, tmp_path, tiny_model_dir):
    names = ["up"] * 20 + ["down"] * 20 + ["Up"] * 4 + ["nan"] * 3
    source = write_csv(tmp_path / "a.csv", list(zip(sentences(len(names)), names, strict=True)))
    split = {"validation": 0.1, "test": 0.1}
    result, lines = run(make_config(tmp_path, tiny_model_dir, source=source, split=split))
    committed = next(n for n, line in enumerate(lines) if line.startswith("committed "))
    last = "\n".join(lines[committed + 1 :])
    assert "'Up', 'up'" in last and "'nan'" in last and '"Up": "up"' in last
    quality = result.manifest.quality
    assert quality["missing_value_labels"] == ["nan"]
    assert "nan" in quality["labels_absent"]
