"""Parts of appended datasets: other files of the same name, corrected mappings, edited queries."""

import json
from types import SimpleNamespace

import pytest

from howdah import storage
from howdah.config import loader as config_module
from howdah.data.manifest import MANIFEST, PartEntry, load_dataset
from howdah.errors import ConfigError, ExpectationsFailed
from howdah.etl import pipeline
from howdah.etl.history import past, place
from howdah.etl.sources import source as sources
from howdah.etl.sources.source import Source
from tests.etl.test_pipeline import rows_of, sentences
from tests.fixtures.spark import FEW_JOBS

ENCODER = SimpleNamespace(hash="tokenizer")


def section(**data):
    return config_module.from_dict({"data": {"append": {"enabled": True}, **data}}).data


def source_file(path, ids: list[str], texts: list[str]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = zip(ids, texts, "ab" * len(ids), strict=False)
    lines = [f"{row_id},{text},{text} again,{label}" for row_id, text, label in rows]
    path.write_text("id,text,other,label\n" + "\n".join(lines) + "\n")
    return str(path)


class Etl:
    """Runs that append to one dataset."""

    def __init__(self, tmp_path, base: str) -> None:
        self.dataset, self.base = str(tmp_path / "dataset"), base

    def __call__(self, source: str, **data):
        append = {"enabled": True, **data.pop("append", {})}
        columns = {"id": "id", **data.pop("columns", {})}
        settings = {"source": source, "dataset": self.dataset, "columns": columns,
                    "append": append, "max_length": 16, **FEW_JOBS, **data}  # fmt: skip
        config = config_module.from_dict({"data": settings, "model": {"base": self.base}})
        lines: list[str] = []
        return pipeline.run(config, progress=lines.append), lines


def ids_of(result) -> set[str]:
    return {row.id.decode() for rows in rows_of(result).values() for row in rows}


@pytest.mark.spark
@pytest.mark.timeout(600)  # five ETLs
def test_a_day_s_file_of_the_same_name_replaces_no_other_day(
    spark, tmp_path, tiny_model_dir, monkeypatch
):
    etl, texts = Etl(tmp_path, tiny_model_dir), sentences(60)
    first = source_file(tmp_path / "in/2026-11-01/data.csv", [f"a{n}" for n in range(24)], texts)
    etl(first)
    second = source_file(tmp_path / "in/2026-11-02/data.csv", [f"b{n}" for n in range(10)],
                         texts[24:])  # fmt: skip
    both, lines = etl(second)
    assert ids_of(both) == {f"a{n}" for n in range(24)} | {f"b{n}" for n in range(10)}
    one, two = both.manifest.parts
    assert (one.name, two.name.partition("~")[0]) == ("data.csv", "data.csv")
    assert [part.source for part in both.manifest.parts] == [{"path": first}, {"path": second}]
    assert any("is appended to" in line for line in lines)

    monkeypatch.chdir(tmp_path / "in")  # the same file in other words
    for spelt in (
        "2026-11-02/data.csv",
        "./2026-11-01/../2026-11-02//data.csv",
        f"file://{second}",
    ):
        assert etl(spelt)[0].unchanged

    # another column of texts is another state of the part, and the others stay
    again, lines = etl(second, columns={"text": "other"})
    assert not again.unchanged and any("replaces its older state" in line for line in lines)
    assert ids_of(again) == ids_of(both) and len(again.manifest.parts) == 2
    # what data.expect asks is judged where nothing is to be done, of the part's own rows
    with pytest.raises(ExpectationsFailed, match="min_rows"):
        etl(second, columns={"text": "other"}, expect={"min_rows": 11})
    assert etl(second, columns={"text": "other"}, expect={"min_rows": 10})[0].unchanged

    with pytest.raises(ConfigError, match="another source has a part of this name") as caught:
        etl(first, append={"part": two.name})
    assert first in caught.value.expected and second in caught.value.got
    with pytest.raises(ConfigError) as caught:
        etl(second, columns={"text_pair": "other"})
    assert caught.value.where == "data.columns.text_pair"
    assert "one text" in caught.value.expected and "pairs" in caught.value.got

    # the part of a version that did not write down where its rows came from
    path = storage.join(again.path, MANIFEST)
    manifest = storage.read_json(path)
    for part in manifest["parts"]:
        del part["source"]
    storage.write_whole(path, json.dumps(manifest).encode())
    assert load_dataset(again.path).manifest.parts[0].source is None
    with pytest.raises(ConfigError, match="another source has a part of this name") as caught:
        etl(first)
    assert "did not record" in caught.value.got and "data.csv~" in caught.value.remedy
    manifest["ledger"]["config"]["etl_format"] = 4
    storage.write_whole(path, json.dumps(manifest).encode())
    with pytest.raises(ConfigError) as caught:
        etl(first)
    assert (
        "etl_format: 4" in caught.value.expected and "another data.dataset" in caught.value.remedy
    )


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("hdfs://nn:8020/in/a.csv", "hdfs://NN:8020/in/./b/../a.csv", True),
        ("hdfs:///in/a.csv", "hdfs://ns1/in/a.csv", True),
        ("hdfs://nn:8020/in/a.csv", "hdfs://other:8020/in/a.csv", False),
        ("hdfs://nn/in/1/a.csv", "hdfs://nn/in/2/a.csv", False),
        ("/in/a.csv", "file:///in//a.csv", True),
        ("/in/a.csv", "hdfs:///in/a.csv", False),
        ("/in/*/a.csv", "/in/./*/a.csv", True),
    ],
)
def test_a_path_is_itself_in_any_spelling(tmp_path, monkeypatch, one, other, same):
    site = "<configuration><property><name>fs.defaultFS</name><value>hdfs://ns1</value></property>"
    (tmp_path / "core-site.xml").write_text(site + "</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    entry = storage.Entry(name="x", path="x", size=1, modified=0.0, is_dir=False)
    places = [
        place.of_source(Source(kind="csv", name=name, files=[entry]), section(source=name))
        for name in (one, other)
    ]
    assert (places[0] == places[1]) is same


def test_tables_partitions_and_queries_are_told_apart(tmp_path):
    def of(**data):
        data = section(**{"format": "hive", **data})
        return place.of_source(sources.resolve(data), data)

    day = {"partitions": {"ds": ["2026-11-01"]}}
    assert of(source="db.t", **day) == of(source="DB.T", partitions={"DS": ["2026-11-01"]})
    assert of(source="db.t", **day) != of(source="db.u", **day)
    assert of(source="db.t", **day) != of(source="db.t", partitions={"ds": ["2026-11-02"]})
    assert of(source="t") == of(source="default.t") == of(source="spark_catalog.default.t")
    query = tmp_path / "query.sql"
    identities = []
    for text in ("SELECT 1", " SELECT 1\n", "SELECT 2"):
        query.write_text(text)
        identities.append(of(query_file=str(query)))
    assert identities[0] == identities[1] != identities[2]


def test_what_a_part_is_read_with_is_part_of_its_identity(tmp_path):
    path = source_file(tmp_path / "a.csv", ["1"], ["text"])

    def identity(**data):
        data = section(source=path, dataset=str(tmp_path / "none"), **data)
        history = past.find(data, sources.resolve(data), etl_format=1, tokenizer="t")
        return history.identity

    sections = [
        {}, {"columns": {"text": "other"}}, {"columns": {"label": "other"}},
        {"columns": {"id": "id"}}, {"columns": {"text_pair": "other"}},
        {"csv": {"encoding": "ISO-8859-1"}}, {"csv": {"header": False}},
    ]  # fmt: skip
    assert len({identity(**one) for one in sections}) == len(sections)
    assert identity(columns={"text": "text"}) == identity()  # the default, named


def hive(**data):
    return section(**{"format": "hive", **data})


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ({"partitions": {"ds": ["a", "b"]}}, {"partitions": {"ds": ["b", "a"]}}, True),
        ({}, {"source": "default.sales"}, True),
        ({}, {"source": "Sales"}, True),
        ({"append": {"enabled": True, "part": "nov"}}, {}, True),
        ({}, {"source": "returns"}, False),
        ({"append": {"enabled": True, "part": "returns"}}, {"source": "returns"}, False),
        ({}, {"append": {"enabled": True, "part": "nov"}}, False),
    ],
)
def test_a_part_is_found_by_its_source_in_any_spelling(before, now, same, monkeypatch):
    def history_of(data, parent):
        data = hive(**{"source": "sales", **data})
        monkeypatch.setattr(past, "newest", lambda dataset: parent)
        return past.find(data, sources.resolve(data), etl_format=1, tokenizer="t")

    first = history_of(before, None)
    entry = PartEntry(name=first.part, identity="of an older state", source=first.source, rows={},
                      version="v=1", read=0, drops={})  # fmt: skip
    ledger = SimpleNamespace(config=first.config, buckets=1, files=[])
    manifest = SimpleNamespace(parts=[entry], ledger=ledger, task="single_label", pairs=False)
    second = history_of(now, SimpleNamespace(path="dataset", manifest=manifest))
    assert (second.part == first.part) is same
    assert (second.replaced == entry) is same


def test_the_name_of_a_part_does_not_depend_on_the_order_of_values():
    partitions = {"ds": ["b", "a"], "hour": ["2", "1"]}
    ordered = {"ds": ["a", "b"], "hour": ["1", "2"]}
    names = {
        place.display_name(sources.resolve(one), one)
        for one in (hive(source="t", partitions=each) for each in (partitions, ordered))
    }
    assert names == {"ds=a+b,hour=1+2"}
