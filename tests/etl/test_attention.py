"""Lines about a new version's labels that need a look; the YAML in them does what it says."""

import json
import re
from types import SimpleNamespace

import pytest
import yaml

from howdah import storage
from howdah.config import loader as config_module
from howdah.etl import attention
from howdah.etl.rows import gate, labels
from tests.etl.test_pipeline import make_config, run, sentences, write_csv

NAMES = ["Account", "Billing", "N/A", "billing", "other: #1", "yes"]
COUNTS = {"train": {0: 4, 1: 3, 2: 5, 3: 160, 4: 9, 5: 2}, "validation": {3: 8, 4: 1}}
QUALITY = {"read": 200, "kept": 192, "drops": {"empty": 8}, "at_max_length": 0}
LEAKAGE = {"similarity": 0.6, "splits": {"test": {"sampled": 40, "found": 3}}}


def shard(counts: dict[int, int]):
    class_counts = {str(number): rows for number, rows in counts.items()}
    return SimpleNamespace(class_counts=class_counts, rows=sum(counts.values()))


def section(**data):
    return config_module.from_dict({"data": data}).data


def found(data, *, names=NAMES, counts=COUNTS, texts=(), **quality) -> dict[str, dict]:
    splits = {"test": []} | {split: [shard(one)] for split, one in counts.items()}
    look = attention.findings(names, splits, QUALITY | quality, data, texts)
    return {finding["kind"]: finding for finding in look}


def test_twins_missing_values_and_absent_classes_are_told_with_the_way_out():
    look = found(section())
    assert list(look) == ["similar_labels", "missing_labels", "absent_labels", "few_rows"]
    assert "'Billing', 'billing'" in look["similar_labels"]["text"]
    assert "'N/A'" in look["missing_labels"]["text"]
    absent = look["absent_labels"]
    assert "No row of 'Account', 'Billing', 'N/A', 'yes' is in validation" in absent["text"]
    assert "'Account', 'Billing', 'N/A', 'yes'" in look["few_rows"]["text"]
    assert section(**pasted(absent)["data"]).split.stratify == 3
    assert section(**pasted(look["few_rows"])["data"]).expect.min_rows_per_class == 10
    data = section(**pasted(look["missing_labels"])["data"])
    rules = labels.rules(data)

    def judged(label: str):
        return gate.judge("some text", label, data.clean, data.quality, rules)

    assert judged("Billing").label == judged("billing").label == "billing"  # the frequent one
    assert judged("N/A").reason == "bad_label" and judged("other: #1").label == "other: #1"
    assert judged("yes").label == "yes"  # not YAML's true
    labels.refuse_unknown(data, {"N/A": 5})  # it is rejected, and does not fail the run
    assert "similar_labels" not in found(data)  # they are mapped
    console = list(attention.lines([*look.values()]))
    assert console[0] == "Look at this:" and "      data:" in console


def test_labels_with_line_ends_of_unicode_can_be_pasted():
    names = ["a\u2028b", "A\u2028b", "x\x85y \U0001f600", "none"]
    counts = {"train": dict.fromkeys(range(4), 100)}
    look = found(section(), names=names, counts=counts)["missing_labels"]
    assert pasted(look)["data"]["labels"] == {names[0]: names[0], names[1]: names[0],
                                              names[2]: names[2]}  # fmt: skip


def test_rows_that_are_few_cut_wrong_or_personal_are_told_and_others_are_not():
    names, many = ["a", "b"], {"train": {0: 80, 1: 80}, "validation": {0: 16, 1: 16}}
    clean = found(section(), names=names, counts=many, texts=["no address"] * 1_000)
    assert clean == {} and list(attention.lines([])) == []
    texts = ["write to zoe@example.com", "call +49 170 1234567", *["no address"] * 98]
    drops = {"wrong_encoding": 4}
    data = section(max_length=64)
    look = found(
        data, names=names, counts=many, texts=texts, drops=drops, read=200, at_max_length=48
    )
    assert list(look) == ["encoding", "cut", "personal"]
    assert look["encoding"]["text"].startswith("4 of 200 rows were dropped")
    assert look["cut"]["text"].startswith("25.0 % of the rows (48 of 192) have 64 tokens")
    assert section(**pasted(look["cut"])["data"]).max_length == 128
    assert "mail addresses in 1.0 % and phone numbers in 1.0 %" in look["personal"]["text"]
    config_module.from_dict(pasted(look["personal"]))
    assert not section(**pasted(look["encoding"])["data"]).quality.reject_wrong_encoding
    drops, leakage = {"duplicate_id": 3, "near_duplicate": 60}, LEAKAGE | {"splits": {}}
    look = found(section(columns={"id": "key"}), names=names, counts=many, drops=drops)
    assert list(look) == ["duplicate_ids", "near_duplicates"]
    assert look["duplicate_ids"]["text"].startswith("3 of 200 rows were dropped")
    assert "the same key (data.columns.id)" in look["duplicate_ids"]["text"]
    assert section(**pasted(look["duplicate_ids"])["data"]).columns.id is None
    assert "23.8 % of the usable rows (60 of 252)" in look["near_duplicates"]["text"]
    assert section(**pasted(look["near_duplicates"])["data"]).dedup.threshold == 0.85
    look = found(section(), names=names, counts=many, drops=drops, leakage=LEAKAGE)
    assert list(look) == ["duplicate_ids", "near_duplicates", "leakage"]
    assert look["near_duplicates"]["yaml"] == []  # more of them would leak
    assert "7.5 % of the evaluation rows that were looked up (3 of 40)" in look["leakage"]["text"]
    assert section(**pasted(look["leakage"])["data"]).dedup.threshold == 0.6
    rare = {"duplicate_id": 2, "near_duplicate": 20}
    assert found(section(), names=names, counts=many, drops=rare, leakage=leakage) == {}
    few = found(section(), names=names, counts={"train": {0: 8, 1: 2}, "test": {0: 2}})
    assert list(few) == ["small", "absent_labels"] and few["small"]["text"].startswith("12 rows")


def pasted(finding: dict) -> dict:
    return yaml.safe_load("\n".join(finding["yaml"]))


@pytest.mark.spark
def test_a_run_ends_with_what_to_look_at(spark, tmp_path, tiny_model_dir):
    names = ["up"] * 20 + ["down"] * 20 + ["Up"] * 4 + ["nan"] * 3
    texts = sentences(len(names))
    texts[7] += " mail me at zoe@example.com"
    source = write_csv(tmp_path / "a.csv", list(zip(texts, names, strict=True)))
    split = {"validation": 0.1, "test": 0.1}
    result, lines = run(make_config(tmp_path, tiny_model_dir, source=source, split=split))
    look = result.as_dict()["look"]
    assert [one["kind"] for one in look][:4] == [
        "small", "similar_labels", "missing_labels", "absent_labels"
    ]  # fmt: skip
    last = "\n".join(attention.lines(look))
    assert "'Up', 'up'" in last and "'nan'" in last and '"Up": "up"' in last
    assert "mail addresses" in last
    report = json.loads(storage.read_text(storage.join(result.path, "report.json")))
    assert report["look"] == look == result.manifest.quality["look"]
    stages = [line for line in lines if re.fullmatch(r"\d/6 [a-zA-Z ]+: \d+\.\d s", line)]
    assert [line.split(":")[0] for line in stages] == [
        "1/6 start Spark", "2/6 read and clean", "3/6 find duplicates", "4/6 divide into splits",
        "5/6 encode and write", "6/6 report",
    ]  # fmt: skip
