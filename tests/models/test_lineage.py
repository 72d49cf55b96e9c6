"""What came of what: rows, dataset versions, runs, published models, scored tables."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from howdah import cli, storage
from howdah.data.lineage import forgotten
from howdah.errors import DataError, ForgottenRows, ModelError
from howdah.etl.history import forget
from howdah.models import scored
from howdah.models.registry import Published
from howdah.models.version import open_version
from howdah.serving.registry import lineage
from howdah.serving.registry.lineage import Places, of_dataset, of_model, of_row
from howdah.serving.registry.publish import publish, republish
from howdah.serving.scoring import marker
from tests.runs.finished_runs import config_of, finished_run, never
from tests.support.rows.appended import build_appended

BASE = {"source": "distilbert", "hash": "b1"}


@pytest.fixture
def place(tmp_path, tiny_model_dir, monkeypatch) -> str:
    """data/ of three days; a run and a version on day 1 (v=1) and one that began from it (v=2), on
    another dataset; a partition that v=2 has scored."""
    monkeypatch.setenv("HOWDAH_CACHE", str(tmp_path / "cache"))
    place = str(tmp_path)
    build_appended(f"{place}/data", model_dir=tiny_model_dir, days=3)
    add_run(place, tiny_model_dir, "one", f"{place}/data/v={1:016x}", BASE)
    later = {**BASE, "init_from": f"{place}/models/zoo/v=1"}
    add_run(place, tiny_model_dir, "two", f"{place}/other/v=0badcafe", later)
    add_marker(f"{place}/models/zoo", 2)
    return place


def add_marker(model: str, version: int) -> None:
    """The marker of a partition that a version has scored, as `howdah score` writes it."""
    state = scored.PartitionState(
        location="/warehouse/ds=2026-11-01", files=1, bytes=9, newest=1.0, digest="d"
    )
    directory = marker.directory_of(model, "db.scored", {"ds": "2026-11-01"})
    storage.make_dirs(directory)
    made = scored.Marker(
        model={"name": "zoo", "version": version, "run_id": "two", "weights": "w"},
        source_table="db.texts", source=state, options={}, output_table="db.scored", output=state,
        partition="ds=2026-11-01", rows=7, errors=0, labels={"a": 7}, reasons=[], profile=None,
        framework="onnx", scored_at="2026-11-02T00:00:00+00:00", seconds=1.0,
    )  # fmt: skip
    marker.write(directory, made)


def add_run(place: str, model: str, name: str, dataset: str, base: dict) -> None:
    run = f"{place}/runs/{name}"
    source = {"kind": "hive", "name": "db.t", "partitions": ["ds=2026-10-31"]}
    changes = {
        "dataset": dataset, "base": base, "source": source, "config_hash": "c1",
        "attempts": [{"user": "anna", "host": "edge1", "command": "howdah train -c a.yaml"}],
    }  # fmt: skip
    finished_run(run, model, run_id=name, changes=changes)
    info = storage.read_json(f"{run}/export/howdah.json")
    info["dataset"] = {"path": dataset, "hash": storage.name(dataset)[2:], "rows": {"test": 7}}
    storage.write_whole(f"{run}/export/howdah.json", json.dumps(info).encode())
    publish(config_of(run, f"{place}/models"), never, note="approved by Anna")


def places(place: str) -> Places:
    return Places(datasets=[f"{place}/data"], runs=[f"{place}/runs"], models=[f"{place}/models"])


def test_a_row_leads_to_all_that_came_of_it(place):
    trail = of_row("d1-train-0", places(place))
    assert [one["hash"] for one in trail["datasets"]] == [f"{day:016x}" for day in (1, 2)]
    [row] = trail["datasets"][1]["rows"]
    assert (row["split"], row["part"]) == ("train", "day-1")
    assert f"v={1:016x}/train-" in row["shard"]  # day 2 has it in the directory of day 1
    assert {one["run_id"]: one["by"] for one in trail["runs"]} == {
        "one": "dataset", "two": f"began from {place}/models/zoo/v=1",
    }  # fmt: skip
    versions = {one["version"]: one for one in trail["models"]}
    assert versions[1]["by"] == "dataset" and not versions[1]["current"]
    assert versions[2]["by"].startswith("began from") and versions[2]["current"]
    assert [(one["table"], one["version"]) for one in trail["scored"]] == [("db.scored", 2)]
    text = "\n".join(lineage.text(trail))
    assert "scored by zoo v=2: db.scored ds=2026-11-01" in text


@pytest.mark.parametrize(
    "body", [b'{"format_version": 99}', b'{"format_version": 1, "model": 5}', b"[]", b"", b"{"]
)
def test_a_marker_that_cannot_be_read_is_of_any_version(place, body):
    broken = f"{place}/models/zoo/scored/db.other/ds=1/done.json"
    storage.make_dirs(storage.parent(broken))
    storage.write_whole(broken, body)
    assert scored.tables(f"{place}/models/zoo", 1) == ["db.other"]
    assert scored.tables(f"{place}/models/zoo", 2) == ["db.other", "db.scored"]


def test_a_row_that_the_etl_has_dropped_is_found_with_its_reason(place):
    version = f"{place}/data/v={2:016x}"
    rows = {
        "id": ["bad", "key#2", "key#two", "bad\u001b[1m"], "text": ["t"] * 4, "label": ["a"] * 4,
        "reason": ["wrong_encoding", "duplicate_id", "empty", "empty"],
        "detail": ["\u00c3\u00a9", "key key", None, None],
    }  # fmt: skip
    pq.write_table(pa.table(rows), f"{version}/rejects-1.parquet")
    manifest = storage.read_json(f"{version}/manifest.json")
    manifest["quality"]["reject_files"] = ["rejects-1.parquet", "gone.parquet"]
    storage.write_whole(f"{version}/manifest.json", json.dumps(manifest).encode())
    trail = of_row("bad", places(place))
    assert not trail["datasets"] and trail["rejected"][0]["path"] == version
    assert [row["reason"] for row in trail["rejected"][0]["rows"]] == ["wrong_encoding"]
    lines = list(lineage.text(trail))
    assert "no dataset version has this row among its kept rows" in lines
    assert "    bad: wrong_encoding (\u00c3\u00a9)" in lines
    [row] = of_row("key", places(place))["rejected"][0]["rows"]
    assert (row["id"], row["reason"]) == ("key#2", "duplicate_id")
    assert of_row("other", places(place))["rejected"] == []


def test_a_row_of_another_day_or_split_leads_to_less(place):
    late = of_row("d2-train-0", places(place))
    assert len(late["datasets"]) == 1 and not late["runs"] and not late["models"]
    of_test = of_row("d0-test-0", places(place))
    assert [one["role"] for one in of_test["models"] if one["version"] == 1] == ["evaluated"]
    none = of_row("no-such-row", places(place))
    assert not any(none[key] for key in ("datasets", "runs", "models", "scored", "forgotten"))


def test_a_shard_without_an_index_is_refused(place):
    path = storage.find(f"{place}/data/v=*/*.ids")[0]
    storage.remove(path)
    with pytest.raises(DataError, match="no index of ids") as caught:
        of_row("d0-train-1", places(place))
    assert caught.value.where == path


def test_a_model_leads_back_to_its_source(place):
    trail = of_model(open_version(f"{place}/models/zoo@1"), places(place))
    assert trail["model"]["version"] == 1 and not trail["model"]["current"]
    assert trail["run"] | {"path": 0, "hours": 0} == {
        "path": 0, "run_id": "one", "there": True, "step": 12, "finished": None,
        "config_hash": "c1", "git": None, "mlflow_run_id": None, "hours": 0, "user": "anna",
        "host": "edge1", "command": "howdah train -c a.yaml",
    }  # fmt: skip
    assert trail["dataset"]["there"] and trail["dataset"]["source"]["part_count"] == 2
    assert trail["base"] == BASE and trail["gate"]["passed"]
    assert trail["published"][0]["note"] == "approved by Anna"
    assert [one["version"] for one in trail["models"]] == [2]  # downwards
    # What run.json said is kept with the version.
    storage.remove(f"{place}/runs/two", recursive=True)
    later = of_model(open_version(f"{place}/models/zoo"), places(place))
    assert not later["run"]["there"] and later["run"]["command"] == "howdah train -c a.yaml"
    assert later["dataset"]["source"]["partitions"] == ["ds=2026-10-31"]
    assert not later["dataset"]["there"] and later["base"]["init_from"].endswith("zoo/v=1")
    with pytest.raises(ModelError):
        of_model(open_version(f"{place}/models/zoo@7"), places(place))


def test_a_dataset_leads_both_ways(place):
    trail = of_dataset(f"{place}/data/v={1:016x}", places(place))
    [one] = trail["datasets"]
    assert one["parent"] == f"{0:016x}" and one["source"]["parts"] == ["day-0", "day-1"]
    assert {run["run_id"] for run in trail["runs"]} == {"one", "two"}
    assert len(of_dataset(f"{place}/data", places(place))["datasets"]) == 3
    with pytest.raises(DataError):
        of_dataset(f"{place}/none", places(place))


def test_after_forgetting_neither_the_model_nor_its_children_are_published(place, tiny_model_dir):
    ids, where = {"d1-train-0"}, {"datasets": [f"{place}/data"]}
    survey = forget.survey(ids, **where, models=[f"{place}/models"])
    assert [(one["current"], one["scored"]) for one in survey.models] == [(False, [])]
    forget.apply(ids, survey, datasets=where["datasets"], progress=lambda line: None)
    trail = of_row("d1-train-0", places(place))
    assert trail["forgotten"] and not trail["datasets"]
    assert {one["version"] for one in trail["models"]} == {1, 2}

    again = finished_run(f"{place}/again", tiny_model_dir, run_id="again")
    config = config_of(again, f"{place}/models")
    info = storage.read_json(f"{again}/export/howdah.json")
    for dataset, base in (
        (f"{place}/data/v={1:016x}", BASE),  # of the marked version itself
        (f"{place}/other/v=1", {**BASE, "init_from": f"{place}/models/zoo/v=1"}),
        (f"{place}/other/v=1", {"source": f"{place}/models/zoo/v=2"}),  # a grandchild
    ):
        info["dataset"] = {"path": dataset, "hash": storage.name(dataset)[2:]}
        storage.write_whole(f"{again}/export/howdah.json", json.dumps(info).encode())
        run = storage.read_json(f"{again}/run.json") | {"base": base}
        storage.write_whole(f"{again}/run.json", json.dumps(run).encode())
        with pytest.raises(ForgottenRows) as caught:
            publish(config, never)
        assert caught.value.exit_code == 3 and "train again" in caught.value.remedy
    assert Published(f"{place}/models/zoo").versions() == [1, 2]
    with pytest.raises(ForgottenRows):
        republish(config, 1)
    made = republish(config, 1, despite_forgotten=True)
    assert made["current"] == 1
    assert storage.read_json(f"{place}/models/zoo/current.json")["despite_forgotten"] is True


def test_marks_that_cannot_be_read_are_no_missing_marks(tmp_path):
    root = str(tmp_path)
    assert forgotten.load(root) is forgotten.NONE
    mark = forgotten.add(root, ["a"], ["h1"], "anna@edge1")
    assert forgotten.add(root, ["a"], ["h1"], "anna@edge1") is None
    forgotten.add(root, ["b"], [], "anna@edge1")
    marks = forgotten.load(root)
    assert marks.when("a") and marks.when("b") and not marks.when("c")
    assert marks.versions_with(["b"]) == set() and marks.versions_with(["a", "b"]) == {"h1"}
    storage.write_whole(mark, b'{"ids": 3}')
    with pytest.raises(DataError):
        forgotten.load(root)


def test_the_command(place, capsys):
    def call(*words: str) -> tuple[int, dict]:
        words = [*words, "--json"]
        code = cli.run(lambda: cli.app(words, standalone_mode=False), as_json=True)
        return code, json.loads(capsys.readouterr().out)

    where = ["--runs", f"{place}/runs", "--models", f"{place}/models"]
    code, answer = call("model", "lineage", "d1-train-0", "--dataset", f"{place}/data", *where)
    assert code == 0 and len(answer["runs"]) == 2
    code, answer = call("model", "lineage", "--model", f"{place}/models/zoo@2", *where)
    assert (code, answer["run"]["run_id"]) == (0, "two")
    code, answer = call("model", "lineage", "--dataset", f"{place}/data", *where)
    assert (code, len(answer["datasets"])) == (0, 3)
    assert call("model", "lineage", "x")[0] == 2
    assert call("model", "lineage", "x", "--model", "m")[0] == 2
    assert call("model", "lineage")[0] == 2
    assert call("model", "lineage", "x", "--dataset", f"{place}/none")[0] == 3
    for option in ("--runs", "--models"):  # nothing is found in a place that does not exist
        code, answer = call("model", "lineage", "--dataset", f"{place}/data", *where, option,
                            f"{place}/none")  # fmt: skip
        assert (code, answer["where"], answer["got"]) == (2, option, f"{place}/none")


@pytest.mark.parametrize(
    "words",
    [
        ["publish", "--version", "1", "--rollback"],
        ["publish", "--set", "publish.mlflow.mode=reference"],
    ],
    ids=" ".join,
)
def test_options_that_contradict_each_other_are_refused(words, capsys):
    code = cli.run(lambda: cli.app([*words, "--json"], standalone_mode=False), as_json=True)
    error = json.loads(capsys.readouterr().out)
    assert (code, error["exit_code"]) == (2, 2)
