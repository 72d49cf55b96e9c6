"""`howdah model forget` outside datasets: Howdah's files are rewritten, and all others listed."""

import datetime
import gzip
import io
import json
import os
from importlib.resources import files

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from howdah import cli, storage
from howdah.data.lineage.rows import rows_of
from howdah.data.manifest import commit, load_dataset
from howdah.etl.history import artefacts, forget, in_dataset
from howdah.etl.workspace.staging import RunLease
from tests.support.rows.appended import build_appended, ids_of

CARD = '<div class="id">test · <code>{}</code> · 9 tokens</div>'
STAYS = {
    "run.json": json.dumps({"run_id": "r1", "step": 5, "attempts": [{"attempt": 5, "pid": 120}]}),
    "metrics.jsonl": '{"step": 5, "loss": 5.0}\n{"step": 120, "loss": 1}\n',
    "config.yaml": "seed: 5\n",
    "report.html": f"<td>5</td><pre>1</pre>{CARD.format(7)}<td>120</td>",
    "export/vocab.txt": "1\n5\n12\n120\n",
    "logs/rank-0.log": "step 5 of 120: loss 1, 12 rows\n",
}


def test_a_card_is_what_the_report_writes():
    made = files("howdah.serving.report").joinpath("report.html.j2").read_text("utf-8")
    [line] = [one for one in made.splitlines() if 'class="id"' in one]
    assert line.startswith(CARD.split("test")[0])
    assert "{{ row.split }} · <code>{{ row.id }}</code> · " in line


def howdah(words: list[str]) -> int:
    return cli.run(lambda: cli.app(words, standalone_mode=False), as_json="--json" in words)


def parquet(table: dict) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(pa.table(table), buffer)
    return buffer.getvalue()


def put(directory, files: dict[str, str | bytes]) -> None:
    for name, data in files.items():
        path = f"{directory}/{name}"
        storage.make_dirs(storage.parent(path))
        storage.write_whole(path, data.encode() if isinstance(data, str) else data)


@pytest.mark.parametrize("row_id", ["1", "5", "12", "120"])
def test_ids_that_are_small_numbers(row_id, tmp_path, tiny_model_dir, capsys):
    root, run = str(tmp_path / "data"), str(tmp_path / "runs/one")
    made = build_appended(root, model_dir=tiny_model_dir, days=2, numbered=True)
    info = {"run_id": "r1", "dataset": {"hash": made.manifest.dataset_hash}}
    put(run, STAYS | {"export/howdah.json": json.dumps(info)})
    other = f"row {row_id}, and {row_id} again"
    tables = {
        "p.csv": f'id,text\n{row_id},"gone\nx"\n7,"{other}"\r\n',
        "p.jsonl": f'{{"id": "{row_id}", "text": "in no other file"}}\n',
        "p.csv.gz": gzip.compress(f"id,text\n{row_id},gone\n7,{row_id}\n".encode()),
    }
    rows = parquet({"id": [row_id, "7"], "text": ["gone", other]})
    put(f"{run}/predictions", tables | {"test.parquet": rows})
    put(f"{tmp_path}/runs/two", STAYS | {"report.html": f"<td>5</td>{CARD.format(row_id)}"})
    (tmp_path / "ids").write_text(f"{row_id}\n")
    words = ["model", "forget", "--ids", str(tmp_path / "ids"), "--dataset", root,
             "--runs", str(tmp_path / "runs"), "--json"]  # fmt: skip
    before = ids_of(made)
    is_in_dataset = any(row_id in rows for rows in before.values())
    assert howdah(words) == 1  # there are files that a person must look at
    output = json.loads(capsys.readouterr().out)
    outside = {path.rpartition("/")[2]: n for path, n in output["files"].items() if run in path}
    assert outside == {"test.parquet": 1} and not output["all_read"]
    listed = {one["path"] for one in output["listed"] if run in one["path"]}
    assert listed == {f"{run}/{name}" for name in (
        "run.json", "logs/rank-0.log", *(f"predictions/{t}" for t in tables)
    )}  # fmt: skip
    assert bool(output["versions"]) == is_in_dataset == bool(output["models"])
    assert howdah([*words, "--apply"]) == 1
    capsys.readouterr()
    for name, text in STAYS.items():
        assert storage.read_text(f"{run}/{name}") == text
    assert not storage.exists(f"{tmp_path}/runs/two/report.html")
    for name, data in tables.items():
        data = data.encode() if isinstance(data, str) else data
        assert storage.read_bytes(f"{run}/predictions/{name}") == data
    assert pq.read_table(f"{run}/predictions/test.parquet").to_pylist() == [
        {"id": "7", "text": other}
    ]
    after = ids_of(load_dataset(root))
    for split, rows in before.items():
        assert after[split] == [one for one in rows if one != row_id]
    # a second run finds none, and changes nothing
    for more in ([], ["--apply"]):
        assert howdah([*words, *more]) == 1
        output = json.loads(capsys.readouterr().out)
        assert output["files"] == {} and output["versions"] == [] and output["changed"] == []


def answer(words: list[str], capsys, code: int = 0) -> dict:
    assert howdah([*words, "--json"]) == code
    out = capsys.readouterr()
    return json.loads(out.out or out.err)


def words_for(tmp_path, *ids: str) -> list[str]:
    (tmp_path / "ids").write_text("".join(f"{one}\n" for one in ids))
    return ["model", "forget", "--ids", str(tmp_path / "ids")]


def test_ids_are_found_as_each_format_writes_them(tmp_path, capsys):
    put(tmp_path / "p", {
        "report.html": CARD.format("say &#34;5&#34; &amp; &lt;6&gt;"),
        "000000_0": parquet({"id": [5.0, 8.0], "key": [1, 5]}),
        "ds=5/.part.parquet.crc": b"\0\xff", "ds=5/part.parquet": parquet({"id": ["5", "7"]}),
    })  # fmt: skip
    words = [*words_for(tmp_path, 'say "5" & <6>', "5"), "--files", str(tmp_path / "p")]
    output = answer(words, capsys)
    assert len(output["files"]) == 3 and output["all_read"] and output["listed"] == []
    assert answer([*words, "--apply"], capsys)["applied"]
    assert pq.read_table(f"{tmp_path}/p/000000_0").to_pylist() == [{"id": 8.0, "key": 5}]
    assert not storage.exists(f"{tmp_path}/p/report.html")
    left = pq.ParquetFile(f"{tmp_path}/p/ds=5/part.parquet").read()
    assert left.to_pylist() == [{"id": "7"}]
    assert not storage.exists(f"{tmp_path}/p/ds=5/.part.parquet.crc")  # of the old file
    assert answer(words, capsys)["files"] == {}


FOREIGN = {
    "p.csv": (b"id\n5\n", "table", "grep -nF -f IDS "),
    "p.tsv.gz": (gzip.compress(b"id\n5\n"), "table", "unpack "),
    "p.jsonl": (b'{"id": 5}\n', "objects", "grep "),
    "done.json": (b"[5]", "objects", "grep "),
    "page.html": (b"<td>5</td>", "page", "grep "),
    "a b.log": (b"row 5", "line", "a b.log'"),
    "p.avro": (b"Obj\x01rest", "table", "Spark"),
    "p.bin": (b"\0\xff", "does not know", "grep "),
    "p.parquet": (b"PAR1 and nothing", "Parquet", "restore"),
    "0000_0": (b"PAR1 and nothing", "Parquet", "restore"),
    "key.parquet": (parquet({"key": ["5"]}), "no column id", "--id-column"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_file_of_another_writer_is_listed_and_stays(name, tmp_path, capsys):
    data, why, look = FOREIGN[name]
    put(tmp_path / "p", {"a.parquet": parquet({"id": ["5"]}), name: data})
    words = [*words_for(tmp_path, "5"), "--files", str(tmp_path / "p")]
    for more in ([], ["--apply"]):
        output = answer([*words, *more], capsys, code=1)
        [listed] = output["listed"]
        assert listed["path"].endswith(name) and not output["all_read"]
        assert why in listed["why"] and look in listed["look"]
    assert storage.read_bytes(f"{tmp_path}/p/{name}") == data
    assert pq.read_table(f"{tmp_path}/p/a.parquet").num_rows == 0


def test_the_lines_never_say_that_nothing_is_left_in_files_that_were_not_read(tmp_path, capsys):
    put(tmp_path / "p", {f"{n}.log": "a" for n in range(25)})
    words = [*words_for(tmp_path, "5"), "--files", str(tmp_path / "p"), "--apply"]
    assert howdah(words) == 1
    out = capsys.readouterr().out
    assert "25 listed files were not read: check them by hand" in out
    assert "scan finds none" not in out
    assert "look at 5 more files: --json lists all" in out and out.count("grep -nF -f IDS") == 20


def test_a_place_that_does_not_exist_was_not_read(tmp_path, capsys):
    output = answer([*words_for(tmp_path, "5"), "--files", str(tmp_path / "p")], capsys, code=1)
    assert output["missing"] == [str(tmp_path / "p")] and not output["all_read"]


def test_where_to_look_in_files_of_a_cluster():
    listed = artefacts.listed("hdfs://nn/runs/one/a.log")
    assert listed.look == "hdfs dfs -cat hdfs://nn/runs/one/a.log | grep -nF -f IDS"
    assert artefacts.listed("s3://b/a.log").look.startswith("fetch s3://b/a.log")


def test_a_column_of_ids_can_be_named(tmp_path, capsys):
    put(tmp_path / "p", {"p.parquet": parquet({"text": ["5", "5"], "key": ["5", "6"]})})
    words = [*words_for(tmp_path, "5"), "--files", str(tmp_path / "p"), "--id-column", "key"]
    assert answer([*words, "--apply"], capsys)["applied"]
    assert pq.read_table(f"{tmp_path}/p/p.parquet").to_pylist() == [{"text": "5", "key": "6"}]


def test_times_stay_of_the_type_that_spark_reads(tmp_path, capsys):
    ends = [datetime.datetime(9999, 12, 31), datetime.datetime(1, 1, 1, microsecond=5)]
    table = pa.table({"id": ["5", "6"], "end": pa.array(ends, pa.timestamp("us"))})
    path = tmp_path / "p.parquet"
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)  # as Spark does by default
    words = [*words_for(tmp_path, "5"), "--files", str(path), "--apply"]
    if int(pa.__version__.partition(".")[0]) < 23:
        (listed,) = answer(words, capsys, code=1)["listed"]
        assert "reads some of its times" in listed["why"]
        return
    assert answer(words, capsys)["applied"]
    left = pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
    assert left.schema.column(1).physical_type == "INT96"
    assert left.read().to_pylist() == [{"id": "6", "end": ends[1]}]


def test_nothing_is_removed_while_a_new_version_is_not_whole(tmp_path, tiny_model_dir, capsys):
    roots = [str(tmp_path / name) for name in ("a", "b")]
    more = {"model_dir": tiny_model_dir, "numbered": True}
    made = [build_appended(root, **more) for root in roots]
    rows = parquet({"id": ["5"]})
    put(tmp_path / "p", {"a.parquet": rows})
    entry = made[1].manifest.splits["validation"][0]
    data = storage.read_bytes(made[1].shard_path(entry))
    storage.write_whole(made[1].shard_path(entry), data[:-1])
    listed = [storage.find(f"{root}/v=*/**/*.*") for root in roots]
    words = [*words_for(tmp_path, "5"), "--dataset", roots[0], "--dataset", roots[1],
             "--files", str(tmp_path / "p"), "--apply"]  # fmt: skip
    answer(words, capsys, code=3)
    for root, old, count in zip(roots, listed, (3, 2), strict=True):
        assert set(old) <= set(storage.find(f"{root}/v=*/**/*.*"))  # though `a` has its new version
        assert len(storage.find(f"{root}/v=*/manifest.json")) == count
    assert storage.read_bytes(f"{tmp_path}/p/a.parquet") == rows
    storage.write_whole(made[1].shard_path(entry), data)  # restored: it goes on
    assert answer(words, capsys)["applied"]
    for root, old in zip(roots, listed, strict=True):
        assert not set(old) & set(storage.find(f"{root}/v=*/**/*.*"))


def test_shards_are_asked_by_their_indexes_and_once(tmp_path, tiny_model_dir, monkeypatch):
    root, read = str(tmp_path / "data"), []
    build_appended(root, model_dir=tiny_model_dir, days=4, numbered=True)

    def counted(version, entry):
        read.append(version.shard_path(entry))
        return rows_of(version, entry)

    monkeypatch.setattr(in_dataset, "rows_of", counted)
    assert forget.survey({"no-such-id"}, datasets=[root]).files == {} and read == []
    survey = forget.survey({"5", "14"}, datasets=[root])
    assert len(survey.versions) == 4 and len(read) == len(set(read)) == 2


def test_what_a_killed_etl_has_left_is_found_and_removed(tmp_path, tiny_model_dir, capsys):
    root = str(tmp_path / "data")
    build_appended(root, model_dir=tiny_model_dir, days=1, numbered=True)
    rows = {"id": ["500", "501"], "text": ["a text", "b"]}
    put(f"{root}/v=00000000000000ff", {
        "scratch-0badcafe/rows-1/final/part-0.parquet": parquet(rows),
        "rejects/part-00000.0badcafe-1.parquet": parquet(rows),
    })  # fmt: skip
    words = [*words_for(tmp_path, "500"), "--dataset", root]
    output = answer(words, capsys)
    assert sorted(output["leftovers"].values()) == [1, 1] and output["versions"] == []
    assert answer([*words, "--apply"], capsys)["applied"]
    assert not storage.exists(f"{root}/v=00000000000000ff")
    assert answer(words, capsys)["leftovers"] == {}
    assert ids_of(load_dataset(root))["train"][0] == "1"  # no version was made or removed


def test_a_run_of_the_etl_under_way_is_waited_for(tmp_path, tiny_model_dir, capsys):
    root = str(tmp_path / "data")
    build_appended(root, model_dir=tiny_model_dir, days=1, numbered=True)
    words = [*words_for(tmp_path, "5"), "--dataset", root]
    with RunLease(f"{root}/v=00000000000000ff"):
        answer([*words, "--apply"], capsys, code=3)
        assert "5" in ids_of(load_dataset(root))["train"]
    assert answer([*words, "--apply"], capsys)["applied"]


def test_rows_that_the_manifest_names_are_taken_out(tmp_path, tiny_model_dir, capsys):
    root = str(tmp_path / "data")
    made = build_appended(root, model_dir=tiny_model_dir, days=1, numbered=True)
    pairs = [{"split": "test", "id": one, "near": two, "similarity": 0.9}
             for one, two in (("10", "500"), ("11", "501"), ("5", "6"))]  # fmt: skip
    splits = {"test": {"sampled": 500, "found": 3}}
    quality = made.manifest.quality | {
        "leakage": {"similarity": 0.5, "splits": splits, "examples": pairs},
    }  # fmt: skip
    source = {"kind": "image", "name": "/i", "files": [["/i/cat/500", 1, 2], ["/i/cat/1500", 1, 2]]}
    storage.remove(f"{made.path}/manifest.json")
    commit(made.path, made.manifest.model_copy(update={"quality": quality, "source": source}))
    words = [*words_for(tmp_path, "500", "cat/500"), "--dataset", root]
    assert answer(words, capsys)["files"] == {f"{made.path}/manifest.json": 2}
    assert answer([*words, "--apply"], capsys)["applied"]
    after = load_dataset(root).manifest
    assert after.quality["leakage"]["examples"] == pairs[1:]
    assert after.source["files"] == [["/i/cat/1500", 1, 2]]
    assert after.quality["leakage"]["splits"] == splits  # counts are no ids


def test_a_dataset_inside_a_run_is_named(tmp_path, tiny_model_dir, capsys):
    inside = f"{tmp_path}/runs/one/crossval-2/data"
    build_appended(inside, model_dir=tiny_model_dir, days=1, numbered=True)
    words = [*words_for(tmp_path, "5"), "--runs", str(tmp_path / "runs")]
    [blocked] = answer(words, capsys)["blocked"]
    assert f"--dataset {inside}" in blocked["remedy"]
    answer([*words, "--apply"], capsys, code=3)
    assert "5" in ids_of(load_dataset(f"{inside}/v={0:016x}"))["train"]
    assert answer([*words, "--dataset", inside, "--apply"], capsys)["applied"]


def test_the_marker_of_a_scored_partition_names_no_row_any_more(tmp_path, capsys):
    marker = {"rows": 5, "reasons": [{"error": "the text is empty", "rows": 5, "example": "5"}]}
    put(tmp_path / "models/news", {
        "v=1/manifest.json": json.dumps({"version": 1}),
        "scored/shop.scored/ds=5/done.json": json.dumps(marker),
    })  # fmt: skip
    words = [*words_for(tmp_path, "5"), "--models", str(tmp_path / "models")]
    assert answer([*words, "--apply"], capsys)["applied"]
    after = storage.read_json(f"{tmp_path}/models/news/scored/shop.scored/ds=5/done.json")
    assert after == {"rows": 5, "reasons": [{**marker["reasons"][0], "example": "[forgotten]"}]}


def test_a_link_s_target_loses_the_row_and_stays_as_private_as_it_was(tmp_path, capsys):
    (tmp_path / "real").mkdir()
    (tmp_path / "files").mkdir()
    target, link = tmp_path / "real/pred.parquet", tmp_path / "files/latest.parquet"
    target.write_bytes(parquet({"id": ["1", "2"]}))
    target.chmod(0o600)
    link.symlink_to(target)
    ids = tmp_path / "ids.txt"
    ids.write_text("1\n")
    words = ["model", "forget", "--ids", str(ids), "--files", str(tmp_path / "files"), "--apply"]
    assert howdah(words) == 0
    assert pq.read_table(target)["id"].to_pylist() == ["2"]
    assert link.is_symlink() and target.stat().st_mode & 0o777 == 0o600


def test_a_version_without_the_rows_is_as_private_as_the_one_before(
    tmp_path, tiny_model_dir, capsys
):
    root = tmp_path / "data"
    made = build_appended(str(root), model_dir=tiny_model_dir, days=1)
    os.chmod(made.path, 0o700)
    (tmp_path / "ids.txt").write_text(ids_of(made)["train"][0] + "\n")
    before = os.umask(0o022)
    try:
        words = ["--ids", str(tmp_path / "ids.txt"), "--dataset", str(root), "--apply"]
        assert howdah(["model", "forget", *words]) == 0
    finally:
        os.umask(before)
    (version,) = root.glob("v=*")
    assert str(version) != made.path and version.stat().st_mode & 0o777 == 0o700
    open_to_others = [path for path in version.rglob("*") if path.stat().st_mode & 0o007]
    assert not open_to_others


def test_a_column_that_python_cannot_hold_is_listed(tmp_path, capsys):
    late = pa.array([10**7], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"id": late}), tmp_path / "late.parquet")
    (tmp_path / "ids.txt").write_text("1\n")
    words = ["--ids", str(tmp_path / "ids.txt"), "--files", str(tmp_path / "late.parquet")]
    assert howdah(["model", "forget", *words]) == 1
