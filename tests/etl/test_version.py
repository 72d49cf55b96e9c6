"""What a dataset version's hash is made of: a new key re-makes nothing, a changed one all."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from pydantic import create_model

from howdah.config import loader as config_module
from howdah.config.data import DataSection
from howdah.config.model import Config
from howdah.config.types import Section
from howdah.etl import pipeline
from howdah.etl.sources.source import Source
from howdah.etl.version import _described

SOURCE = Source(kind="csv", name="a.csv", identity={"files": [["/a.csv", 7, 1.0]]})
ENCODER = SimpleNamespace(hash="tokenizer")

# Keys at their default are not hashed. A version made while a default was another one must have
# another hash: where one of these changes, raise ETL_FORMAT and put the new defaults here. A new
# key whose default does what was done without it is added here under the same format.
DEFAULTS = {
    "etl_format": 5,
    "format": "auto",
    "task": "single_label",
    "columns": {
        "text": ["text"], "text_pair": None, "label": "label", "label_separator": ",", "id": None,
        "separator": " ", "image": "image",
    },
    "csv": {
        "header": True, "names": None, "delimiter": ",", "quote": '"', "escape": None,
        "encoding": "UTF-8", "multiline": True,
    },
    "tfrecord": {"input_ids": "input_ids", "attention_mask": None},
    "labels": None,
    "max_length": 128,
    "clean": {
        "unicode_nfc": True, "html_entities": True, "html_tags": False,
        "backslash_breaks": False, "control_characters": True, "whitespace": True,
    },
    "quality": {
        "min_characters": 3, "max_characters": 20000, "reject_wrong_encoding": True,
        "unknown_label": "fail", "max_reject_fraction": 0.5, "max_leakage": None,
    },
    "dedup": {
        "exact": True, "near": True, "ngram": "auto",
        "threshold": 0.7, "conflict": {"policy": "reject", "tolerance": 0.0},
    },
    "split": {
        "validation": 0.1, "test": 0.1, "seed": 13, "fold": None,
        "column": None, "values": {}, "group": [], "stratify": None,
        "sources": {"validation": None, "test": None},
        "time": {"column": None, "validation_from": None, "test_from": None},
    },
    "kind": "text",
    "balance": "none",
    "shard_bytes": 96 * 2**20,
    "num_shards": None,
    "compression": "none",
}  # fmt: skip

NOT_DEFAULT = {
    "columns": {"text": ["title", "body"]},
    "csv": {"delimiter": ";"},
    "labels": {"1": "World", "2": "Sports"},
    "max_length": 64,
    "clean": {"html_tags": True},
    "split": {"seed": 14},
}


def version(data=None, model: type[Section] = DataSection) -> str:
    return pipeline.dataset_hash(SimpleNamespace(data=model(**(data or {}))), SOURCE, ENCODER)


def with_a_new_key(model: type[Section], path: tuple[str, ...]) -> type[Section]:
    """The model with one more defaulted key, in the section that `path` leads to."""
    if not path:
        return create_model("More" + model.__name__, __base__=model, new_key=(bool, False))
    below = with_a_new_key(model.model_fields[path[0]].annotation, path[1:])
    return create_model("More" + model.__name__, __base__=model, **{path[0]: (below, below())})


SECTIONS = [
    name for name, field in DataSection.model_fields.items()
    if name not in pipeline._NOT_HASHED
    and isinstance(field.annotation, type) and issubclass(field.annotation, Section)
]  # fmt: skip


@pytest.mark.parametrize("path", [(), *((name,) for name in SECTIONS)])
@pytest.mark.parametrize("data", [{}, NOT_DEFAULT])
def test_a_new_key_at_its_default_makes_no_new_version(path, data):
    more = with_a_new_key(DataSection, path)
    assert version(data, more) == version(data)
    change = {"new_key": True}
    for name in reversed(path):
        change = {name: {**data.get(name, {}), **change}}
    assert version({**data, **change}, more) != version(data)


def test_a_new_key_below_a_new_section_makes_none_either():
    below = create_model("Below", __base__=Section, new_key=(int, 1))
    more = create_model("More", __base__=DataSection, section=(below, below()))
    assert version({}, more) == version()
    assert version({"section": {"new_key": 2}}, more) != version()


def leaves(values: dict, *path: str):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from leaves(value, *path, name)
        else:
            yield (*path, name), value


OTHERS = {
    "format": "csv", "text": ["body"], "id": "key", "escape": "\\",
    "delimiter": ";", "quote": "'", "encoding": "latin-1", "attention_mask": "mask",
    "labels": ["a", "b"], "num_shards": 4,
    "balance": "upsample", "compression": "gzip",
    "unknown_label": "reject", "threshold": 0.8, "ngram": 5,
    "max_leakage": 0.1,
    "validation": 0.2, "test": 0.2, "fold": "1/5", "max_reject_fraction": 0.4,
    "column": "kind", "group": ["user"], "stratify": 5, "policy": "keep",
    "sources.validation": "v.csv", "sources.test": "t.csv",
    "kind": "image", "task": "multi_label", "text_pair": ["title"],
}  # fmt: skip
# They need a column (and so do split.values), or a file without a header.
WITH_ANOTHER = {"validation_from", "test_from", "names"}
HASHED = {name: value for name, value in DEFAULTS.items() if name != "etl_format"}


def nested(path: tuple[str, ...], value) -> dict:
    for name in reversed(path):
        value = {name: value}
    return value


@pytest.mark.parametrize(
    ("path", "default"),
    [pytest.param(*x, id=x[0][-1]) for x in leaves(HASHED) if x[0][-1] not in WITH_ANOTHER],
)
def test_a_value_that_is_not_the_default_makes_a_new_version(path, default):
    if (named := ".".join(path[-2:])) in OTHERS or path[-1] in OTHERS:
        other = OTHERS.get(named, OTHERS.get(path[-1]))
    elif isinstance(default, bool):
        other = not default
    else:
        other = default + ("x" if isinstance(default, str) else 1)
    assert version(nested(path, other)) != version()
    assert version(nested(path, default)) == version()  # given by name, or not at all


def test_keys_that_need_another_one_make_a_new_version_too():
    for column, more in (
        ({"column": "kind"}, {"values": {"a": "train"}}),
        ({"time": {"column": "at"}}, {"time": {"column": "at", "test_from": "2026-01-01"}}),
        ({"time": {"column": "at"}}, {"time": {"column": "at", "validation_from": "7"}}),
    ):
        assert version({"split": {**column, **more}}) != version({"split": column}) != version()
    headless = {"header": False}
    named = {**headless, "names": ["a", "b"]}
    assert version({"csv": named}) != version({"csv": headless}) != version()


def test_a_size_of_none_hashes_as_before_sizes_could_be_rows():
    assert version({"split": {"validation": 0}}) == version({"split": {"validation": 0.0}})
    assert version({"split": {"test": 1000}}) != version()


def test_the_defaults_that_are_not_hashed_are_those_of_this_format():
    data = Config().data
    now = data.model_dump(mode="json", exclude=pipeline._NOT_HASHED)
    assert {"etl_format": pipeline.ETL_FORMAT, **now} == DEFAULTS
    assert data.model_dump(exclude_defaults=True) == {}  # none is left in for its raw form


def test_the_hash_is_of_these_things():
    """A version that is there is found by it: it may change with ETL_FORMAT alone."""
    assert version() == "0dea9b35ac64b286"
    assert version(NOT_DEFAULT) == "d437737944c02be6"


def test_the_order_in_which_keys_are_given_does_not_count_but_that_of_labels_does():
    assert version(dict(reversed(NOT_DEFAULT.items()))) == version(NOT_DEFAULT)
    turned = dict(reversed(NOT_DEFAULT["labels"].items()))  # Sports is 0 then
    assert version({**NOT_DEFAULT, "labels": turned}) != version(NOT_DEFAULT)
    assert version({"labels": ["a", "b"]}) != version({"labels": ["b", "a"]})


def test_where_it_goes_and_how_spark_runs_make_no_new_version():
    settings = {"dataset": "elsewhere", "spark": {"master": "yarn"}, "source": "b.csv"}
    assert version(settings) == version()
    assert version({"expect": {"min_rows": 7}}) == version()


def test_a_version_of_an_earlier_format_is_another_one(monkeypatch):
    now = version()
    monkeypatch.setattr(pipeline, "ETL_FORMAT", pipeline.ETL_FORMAT - 1)
    assert version() != now


# -------------------------------------------------------------------------- what a manifest says
def test_a_tables_schema_and_the_mapped_columns_stand_side_by_side():
    schema = [["body", "string"], ["topic", "string"]]
    source = Source(kind="hive", name="q.sql", query="SELECT 1", identity={"columns": schema})
    data = DataSection(format="hive", columns={"text": "body", "label": "topic"})
    description = _described(source, data)
    assert description["columns"]["text"] == ["body"] and description["schema"] == schema
    assert description["sql"] == "SELECT 1"
    assert source.identity == {"columns": schema}  # which is hashed


@pytest.mark.parametrize(
    ("table", "written", "lacks"),
    [("db.bad", None, True), ("db.bad", "db.old", True), ("db.bad", "db.bad", False),
     (None, None, False)],
)  # fmt: skip
def test_a_version_may_lack_its_table_of_rejects(table, written, lacks):
    config = config_module.from_dict({"data": {"rejects_table": table}})
    manifest = SimpleNamespace(quality={"rejects_table": written})
    assert pipeline.lacks_rejects(config, manifest) is lacks


REJECTS = """
import json, sys
from howdah.etl import pipeline
from howdah.config import loader
from howdah.spark.session import session

base, source = sys.argv[1:]
data = {"source": source, "dataset": "dataset", "dedup": {"near": False}, "max_length": 16,
        "columns": {"id": "id"},
        "spark": {"master": "local[1]", "driver_memory": "512m"}}
lines = []
def etl(**more):
    config = loader.from_dict({"data": {**data, **more}, "model": {"base": base}})
    return pipeline.run(config, progress=lines.append)

with session(loader.from_dict({"data": data}).data.spark, hive=True) as spark:
    first = etl()
    later = etl(rejects_table="bad")
    rows = [row.asDict() for row in spark.table("bad").select("id", "reason", "dataset").collect()]
    print(json.dumps([first.hash, later.unchanged, rows, lines]))
"""


@pytest.mark.spark
@pytest.mark.full
def test_a_table_of_rejects_that_is_asked_for_later_is_written(tmp_path, tiny_model_dir):
    lines = [f"{n},text number {n} and {n * 7919},{'ab'[n % 2]}" for n in range(20)]
    (tmp_path / "a.csv").write_text("id,text,label\n" + "\n".join([*lines, "bad,,a"]) + "\n")
    argv = [sys.executable, "-c", REJECTS, tiny_model_dir, str(tmp_path / "a.csv")]
    run = subprocess.run(
        argv, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
    )
    assert run.returncode == 0, run.stderr[-2_000:]
    hash_, unchanged, rows, messages = json.loads(run.stdout.splitlines()[-1])
    assert unchanged and rows == [{"id": "bad", "reason": "empty", "dataset": hash_}]
    assert any(line.endswith(f"existing version to bad, dataset={hash_}") for line in messages)
