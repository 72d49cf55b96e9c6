"""Versions made from others without Spark: merged shards, and versions without some rows."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from howdah import cli, storage
from howdah.config.splits import SPLITS
from howdah.config.training import TrainingSection
from howdah.data.lineage import forgotten, shards
from howdah.data.manifest import commit, load_dataset
from howdah.data.record import RecordLayout
from howdah.data.splits.shards import ShardSet
from howdah.errors import ConfigError, DataError
from howdah.etl.history import forget, rewrite
from howdah.etl.history.trained import model_lines
from howdah.etl.workspace import staging
from howdah.models.replay import replayed
from tests.fixtures.dataset import build_dataset, write_rows
from tests.support.rows.appended import build_appended, ids_of


def quiet(line: str) -> None:
    pass


@pytest.mark.parametrize("task", ["multi_label", "regression"])
def test_rows_of_every_task_are_found_and_forgotten(task, tmp_path, tiny_model_dir):
    root = str(tmp_path / "data")
    made = build_dataset(f"{root}/v={0:016x}", model_dir=tiny_model_dir, task=task)
    quality = {"read": 145, "kept": 145, "drops": {}, "seconds": 1.0, "at_max_length": 0}
    fields = {"source": {"kind": "csv", "name": "a.csv"}, "quality": quality}
    storage.remove(f"{made.path}/manifest.json")
    commit(made.path, made.manifest.model_copy(update=fields))
    before = load_dataset(root)
    [place] = shards.find("train-5", [before])[before.path]
    assert place["split"] == "train"
    kept = all_rows(before)
    survey = forget.survey({"train-5", "mistyped"}, datasets=[root])
    assert list(survey.files.values()) == [1]
    assert survey.nowhere == ["mistyped"]  # train-5 is in a shard, and in no other file
    forget.apply({"train-5"}, survey, datasets=[root], progress=quiet)
    forget.refuse_left(forget.survey({"train-5"}, datasets=[root]))
    assert kept.pop("train-5") and kept == all_rows(load_dataset(root))


def test_copies_are_known_by_what_they_hold_and_not_by_their_names(tmp_path, tiny_model_dir):
    root, run = str(tmp_path / "data"), str(tmp_path / "runs")
    keys = ["page", "page#2", "page#12", "other"]
    made = numbered_rows(f"{root}/v={0:016x}", tiny_model_dir, keys)
    storage.make_dirs(run)
    storage.write_whole(f"{run}/p.parquet", parquet({"id": keys}))
    places = {"datasets": [root], "runs": [run]}
    survey = forget.survey({"page"}, **places)
    assert survey.files == {
        made.shard_path(made.manifest.splits["train"][0]): 2,
        f"{run}/p.parquet": 2,
    }
    forget.apply({"page"}, survey, datasets=[root], progress=quiet)
    forget.refuse_left(forget.survey({"page"}, **places))
    after = load_dataset(root)
    assert ids_of(after)["train"] == ["other", "page#12"]
    assert pq.read_table(f"{run}/p.parquet")["id"].to_pylist() == ["page#12", "other"]
    quality = after.manifest.quality
    assert (quality["kept"], quality["drops"], quality["forgotten"]) == (3, {"forgotten": 1}, 2)
    # the copy is known by the marks when the dataset has neither of them any more
    storage.write_whole(f"{run}/p.parquet", parquet({"id": ["page#2", "page#3"]}))
    assert forget.survey({"page"}, **places).files == {f"{run}/p.parquet": 1}
    assert forgotten.load(root).when("page#12") is None


def numbered_rows(path: str, model_dir: str, keys: list[str]):
    """A dataset with these rows for training: all but the first two differ in their text."""
    made = build_dataset(path, model_dir=model_dir, rows={"train": 2}, shards=1)
    for name in ("manifest.json", *(f"{made.manifest.splits['train'][0].name}{end}" for end in
                                    ("", ".index", ".ids"))):  # fmt: skip
        storage.remove(f"{path}/{name}")
    texts = [np.array([2, 7 + max(1, n), 3], np.uint32) for n in range(len(keys))]
    splits = {"train": write_rows(
        path, "train", RecordLayout(), "none", 1, texts, [0] * len(keys), keys
    )}  # fmt: skip
    quality = {"read": 4, "kept": 4, "drops": {}, "seconds": 1.0, "at_max_length": 0}
    fields = {"source": {"kind": "csv", "name": "a.csv"}, "quality": quality, "splits": splits}
    commit(path, made.manifest.model_copy(update=fields))
    return load_dataset(path)


def all_rows(dataset) -> dict[str, tuple]:
    """{id: (token ids, what is to be predicted, by record and by index)}"""
    examples = {}
    for split, entries in dataset.manifest.splits.items():
        one = ShardSet(dataset, split)
        for shard, entry in enumerate(entries):
            for row in range(entry.rows):
                example = one.example(shard, row)
                target = one.labels_of(np.array([shard]), np.array([row])).tolist()
                examples[example.id.decode()] = (example.input_ids.tolist(), example.label, target)
    return examples


@pytest.fixture(params=["plain", pytest.param("hdfs", marks=pytest.mark.hadoop)])
def place(request, tmp_path):
    """A directory for datasets."""
    return str(tmp_path) if request.param == "plain" else request.getfixturevalue("hdfs_dir")


@pytest.fixture
def root(tmp_path, tiny_model_dir):
    build_appended(str(tmp_path / "data"), model_dir=tiny_model_dir, days=3)
    return str(tmp_path / "data")


def versions(root: str) -> int:
    return sum(
        storage.exists(storage.join(e.path, "manifest.json")) for e in storage.list_dir(root)
    )


def test_a_dataset_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match="there is no dataset") as caught:
        forget.survey(["x"], datasets=[str(tmp_path / "nope")])
    assert caught.value.where == str(tmp_path / "nope")


def test_shards_of_versions_before_are_found_and_stay_when_it_is_swept(root):
    staging.sweep(root)
    ids = ids_of(load_dataset(root))
    assert len(ids["train"]) == 18 and "d0-train-0" in ids["train"]
    old = storage.join(root, "v=0000000000000000")
    assert {e.name for e in storage.list_dir(old) if e.is_dir} == {"ledger", "rejects"}
    assert "parent" not in json.dumps(load_dataset(old).manifest.model_dump())


def test_a_missing_shard_of_a_version_before_is_named(root):
    dataset = load_dataset(root)
    entry = dataset.manifest.splits["train"][0]
    storage.remove(dataset.shard_path(entry))
    with pytest.raises(DataError) as caught:
        ids_of(dataset)
    assert "v=0000000000000000" in str(caught.value)


def test_compaction_merges_all_parts_but_the_newest(root):
    before = load_dataset(root)
    made = rewrite.compact(before, quiet)
    assert ids_of(made) == ids_of(before) and load_dataset(root).path == made.path
    assert [e.part for e in made.manifest.splits["train"]] == [None, "day-2"]
    assert {f.part for f in made.manifest.ledger.files} == {None, "day-2"}
    assert sum(f.rows for f in made.manifest.ledger.files if f.kind == "rows") == 33
    again = rewrite.compact(made, quiet)
    assert again.path == made.path  # one older part is left: nothing to merge
    staging.sweep(root)
    assert ids_of(load_dataset(root)) == ids_of(before)
    for entry in storage.list_dir(root):  # it needs no version before
        if entry.path != made.path:
            storage.remove(entry.path, recursive=True)
    assert len(ids_of(load_dataset(root))["train"]) == 18


def test_a_run_that_fails_leaves_the_parent_whole(root, monkeypatch):
    before = load_dataset(root)
    held = ids_of(before)

    def fails(*args):
        raise DataError("no more room")

    for step in ("refuse_missing", "commit"):
        with monkeypatch.context() as patch:
            patch.setattr(rewrite, step, fails)
            with pytest.raises(DataError):
                rewrite.compact(before, quiet)
        assert versions(root) == 3 and len(storage.list_dir(root)) == 3
        assert ids_of(load_dataset(root)) == held


def training(replay, seed: int) -> TrainingSection:
    return TrainingSection(replay=replay, seed=seed)


def test_replay_takes_the_newest_part_and_some_of_the_older(root):
    dataset = load_dataset(root)
    assert replayed(dataset, training(None, 1)) is dataset
    none = replayed(dataset, training(0, 1))
    assert [e.part for e in none.manifest.splits["train"]] == ["day-2"]
    assert none.manifest.splits["test"] == dataset.manifest.splits["test"]
    for replay in (0.5, 6):
        half = replayed(dataset, training(replay, 1))
        assert half.manifest.rows("train") == 12
        assert half.identity == replayed(dataset, training(replay, 1)).identity
        assert len({half.identity, none.identity, dataset.identity}) == 3
    chosen = {replayed(dataset, training(6, s)).manifest.splits["train"][0].part for s in range(8)}
    assert chosen == {"day-0", "day-1"}
    with pytest.raises(ConfigError):
        replayed(load_dataset(root).__class__(
            path="x", manifest=dataset.manifest.model_copy(update={"parts": []}),
            manifest_hash="y"), training(0.5, 1))  # fmt: skip


def test_nothing_is_left_of_a_forgotten_row(place, tiny_model_dir):
    root, run, ids = f"{place}/data", f"{place}/runs/one", {"d0-train-0", "d1-test-1", "gone-1"}
    build_appended(root, model_dir=tiny_model_dir, days=3)
    trained = load_dataset(storage.join(root, "v=0000000000000001"))
    info = {"run_id": "r1", "dataset": {"hash": trained.manifest.dataset_hash}}
    for name, data in {
        "predictions/p.parquet": parquet({"id": ["d0-train-0", "d0-train-1"], "text": ["a", "b"]}),
        "predictions/p.csv": b'id,text\nd1-test-1,"a\nb"\nd1-test-0,c\n',
        "predictions/p.jsonl": b'{"id": "gone-1"}\n{"id": "x"}\n',
        "rank-0.log": b"row d0-train-0: too long\nother\n",
        "export/howdah.json": json.dumps(info).encode(),
    }.items():
        storage.make_dirs(storage.parent(f"{run}/{name}"))
        storage.write_whole(f"{run}/{name}", data)
    places = {"datasets": [root], "runs": [f"{place}/runs"]}
    before, listed = ids_of(load_dataset(root)), sorted(storage.find(f"{root}/*/*"))
    survey = forget.survey(ids, **places)
    assert sorted(storage.find(f"{root}/*/*")) == listed  # a survey changes nothing
    listed = {one["path"].rpartition("/")[2] for one in survey.listed}
    assert listed == {"p.csv", "p.jsonl", "rank-0.log"}
    assert len(survey.versions) == 3 and survey.models[0]["run_id"] == "r1"
    assert f"{run}/predictions/p.parquet" in survey.files
    with pytest.raises(DataError) as caught:
        forget.refuse_left(survey)
    assert caught.value.exit_code == 3
    changed = forget.apply(ids, survey, datasets=[root], progress=quiet)
    left = forget.survey(ids, **places)
    forget.refuse_left(left)
    assert left.models == survey.models  # its version is gone, and it is still listed
    after = load_dataset(root)
    assert after.path in changed and versions(root) == 1
    got = ids_of(after)
    for split in SPLITS:
        assert set(before[split]) - set(got[split]) == ids & set(before[split])
    ledger = after.manifest.ledger.files
    assert sum(f.rows for f in ledger if f.kind == "bands") == 31
    assert [p.name for p in after.manifest.parts] == ["day-0", "day-1", "day-2"]
    assert left.listed == survey.listed and not left.all_read
    assert storage.read_text(f"{run}/rank-0.log") == "row d0-train-0: too long\nother\n"
    with storage.open_read(f"{run}/predictions/p.parquet") as file:
        assert pq.read_table(pa.PythonFile(file, "r")).num_rows == 1
    # What is left is a mark without an id or a text, and it is known again.
    [mark] = [path for path in changed if "/forgotten/" in path]
    text = storage.read_text(mark)
    assert not any(row_id in text for row_id in ids) and "train" not in text
    marks = forgotten.load(root)
    assert all(marks.when(row_id) for row_id in ids) and marks.when("d0-train-1") is None
    assert set(marks.versions) == {f"{day:016x}" for day in range(3)}


def test_parts_and_quality_count_the_rows_that_are_left_out(root):
    ids = {"d0-train-0", "d0-train-1", "d1-test-0", "d2-validation-0", "gone-2"}
    before = load_dataset(root).manifest
    survey = forget.survey(ids, datasets=[root])
    forget.apply(ids, survey, datasets=[root], progress=quiet)
    after = load_dataset(root).manifest
    for old, new, gone in zip(
        before.parts, after.parts, ({"train": 2}, {"test": 1}, {"validation": 1}), strict=True
    ):
        assert new.rows == {split: n - gone.get(split, 0) for split, n in old.rows.items()}
        assert new.drops == {**old.drops, "forgotten": sum(gone.values())}
    # as the manifest's `quality` is that of the newest part
    assert after.quality["kept"] == before.quality["kept"] - 1
    assert after.quality["drops"] == {"near_duplicate": 1, "forgotten": 1}
    assert after.quality["forgotten"] == 4


def parquet(table: dict) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(table), buffer)
    return buffer.getvalue()


def test_rows_of_a_scored_table_go_by_their_number(tmp_path):
    path = str(tmp_path / "part-0.parquet")
    table = {"id": [7, 8, 9], "rank": [8, 1, 1], "label": ["cat", "dog", "dog"]}
    storage.write_whole(path, parquet(table))
    survey = forget.survey({"8"}, files=[str(tmp_path)])
    assert survey.files == {path: 1}
    forget.apply({"8"}, survey, progress=quiet)
    assert pq.read_table(path)["id"].to_pylist() == [7, 9]


def test_what_has_none_of_the_rows_stays_as_it_is(root):
    listed = sorted(storage.find(f"{root}/*/*"))
    survey = forget.survey({"no-such-id"}, datasets=[root])
    assert survey.files == {} == forget.survey({"train-0"}, datasets=[root]).files
    [mark] = forget.apply({"no-such-id"}, survey, datasets=[root], progress=quiet)
    kept = [path for path in storage.find(f"{root}/*/*") if "/forgotten/" not in path]
    assert sorted(kept) == listed
    assert storage.read_json(mark)["versions"] == []
    # ... and a second time not even a mark
    assert forget.apply({"no-such-id"}, survey, datasets=[root], progress=quiet) == []


def test_ids_that_are_in_no_place_are_listed(root, tmp_path):
    parquet_path = tmp_path / "rows.parquet"
    parquet_path.write_bytes(parquet({"id": ["elsewhere-1"]}))
    ids = {"d0-train-0", "elsewhere-1", "mistyped-1"}
    survey = forget.survey(ids, datasets=[root], files=[str(tmp_path / "rows.parquet")])
    assert survey.nowhere == ["mistyped-1"] and survey.as_dict()["ids_nowhere"] == 1
    assert forget.nowhere_lines(survey) == [
        "1 of 3 ids are in none of the files that were read: 'mistyped-1'"
    ]
    forget.apply({"d0-train-0"}, survey, datasets=[root], progress=quiet)
    again = forget.survey({"d0-train-0"}, datasets=[root])
    assert again.nowhere == [] and forget.nowhere_lines(again) == []  # forgotten before


def test_runs_without_an_export_and_tables_of_rejected_rows_are_listed(root, tmp_path):
    version = load_dataset(root)
    for name, status, dataset in (
        ("failed", "failed", version.path), ("running", "running", version.path + "/"),
        ("other", "failed", f"{root}/v=0badcafe"),
    ):  # fmt: skip
        (tmp_path / "runs" / name).mkdir(parents=True)
        run = {"run_id": name, "status": status, "dataset": dataset}
        (tmp_path / "runs" / name / "run.json").write_text(json.dumps(run))
    quality = {**version.manifest.quality, "rejects_table": "db.rejects"}
    path = storage.join(version.path, "manifest.json")
    manifest = storage.read_json(path) | {"quality": quality}
    storage.write_whole(path, json.dumps(manifest).encode())
    survey = forget.survey({"d0-train-0"}, datasets=[root], runs=[str(tmp_path / "runs")])
    listed = {one["run_id"]: one["status"] for one in survey.models}
    assert listed == {"failed": "failed", "running": "running"}
    [line] = model_lines(next(one for one in survey.models if one["run_id"] == "failed"))
    assert "failed, whose checkpoints" in line and version.path in line
    table = f"db.rejects, partition dataset={version.manifest.dataset_hash}"
    lines = [line for line in forget.found_lines(survey) if table in line]
    assert survey.tables == [table] and "drop the partition" in lines[0]


@pytest.mark.parametrize("encoded", ["utf-8", "utf-8-sig"])
def test_ids_of_a_file_are_taken_as_they_are(tmp_path, encoded):
    lines = ["article-1", "a\u2028b", "x\u0085y\x0cz", "in  the middle", "\u00e9"]
    (tmp_path / "ids").write_bytes(("\r\n".join(lines) + "\n\n").encode(encoded))
    assert forget.read_ids(str(tmp_path / "ids")) == frozenset(lines)
    (tmp_path / "ids").write_bytes("article-1\n".encode("utf-16"))
    with pytest.raises(DataError, match="not UTF-8") as caught:
        forget.read_ids(str(tmp_path / "ids"))
    assert "UTF-16" in caught.value.remedy


def test_a_list_without_ids_and_a_single_version_are_refused(root, tmp_path):
    (tmp_path / "ids").write_text("\n \n")
    with pytest.raises(DataError):
        forget.read_ids(str(tmp_path / "ids"))
    with pytest.raises(DataError) as caught:
        forget.survey({"a"}, datasets=[load_dataset(root).path])
    assert root in str(caught.value)


def test_the_commands_say_what_they_find_and_change_nothing_unasked(root, tmp_path, capsys):
    (tmp_path / "ids").write_text("d0-train-0\n")
    words = ["model", "forget", "--ids", str(tmp_path / "ids"), "--dataset", root, "--json"]
    assert howdah(words) == 0
    output = json.loads(capsys.readouterr().out)
    assert not output["applied"] and len(output["versions"]) == 3 and versions(root) == 3
    assert howdah([*words, "--apply"]) == 0
    assert json.loads(capsys.readouterr().out)["applied"] and versions(root) == 1
    assert howdah(["model", "forget", "--ids", str(tmp_path / "ids")]) == 2
    capsys.readouterr()
    assert howdah(["etl", "--compact", "--set", f"data.dataset={root}", "--json"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert output["shards"] < output["shards_before"]


def howdah(words: list[str]) -> int:
    return cli.run(lambda: cli.app(words, standalone_mode=False), as_json="--json" in words)
