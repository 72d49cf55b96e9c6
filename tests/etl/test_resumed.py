"""ETL runs that are killed or interrupted: what is swept, and what the next run goes on from."""

import json
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from howdah import storage
from howdah.data.manifest import load_dataset
from howdah.errors import ClusterError, DataError, HowdahError
from howdah.etl import pipeline, version
from howdah.etl.workspace.scratch import Scratch
from howdah.etl.workspace.staging import RunLease
from howdah.etl.write import shards
from tests.etl.test_pipeline import make_config, rows_of, run, sentences, write_csv

pytestmark = pytest.mark.spark


class Killed(BaseException):
    """Nothing runs after SIGKILL: neither the discarding nor the end of the lease."""


def die(*_, **__):
    raise Killed


def killed(config, monkeypatch, place, name):
    """The version directory of a run that is killed when it calls `place.name`."""
    with monkeypatch.context() as patch:
        patch.setattr(place, name, die)
        patch.setattr(pipeline, "discard", lambda *_, **__: None)
        patch.setattr(RunLease, "__exit__", lambda *_: None)
        with pytest.raises(Killed):
            run(config)
    version = next(e.path for e in storage.list_dir(config.data.dataset))
    lease = next(e for e in storage.list_dir(version) if e.name.startswith("_run-"))
    dead = {**storage.read_json(lease.path), "pid": _dead_pid()}
    storage.write_whole(lease.path, json.dumps(dead).encode())
    return version


def _dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_what_a_crashed_run_left_is_swept(spark, tmp_path, tiny_model_dir, monkeypatch):
    source = write_csv(tmp_path / "r.csv", [(t, "ab"[n % 2]) for n, t in enumerate(sentences(30))])
    config = make_config(tmp_path, tiny_model_dir, source=source)

    version = killed(config, monkeypatch, pipeline, "commit")
    left = {e.name for e in storage.list_dir(version)}
    assert any(name.endswith(".tfrecord") for name in left) and "manifest.json" not in left
    with pytest.raises(DataError, match="no dataset"):
        load_dataset(config.data.dataset)
    result, lines = run(config)
    assert result.path == version and any(line.startswith("removed ") for line in lines)
    now = {e.name for e in storage.list_dir(version)}
    assert not {n for n in left if n.endswith((".tfrecord", ".index", ".ids"))} & now
    assert sum(map(len, rows_of(result).values())) == 30


def content(result):
    """What may not depend on how often a run was killed: each shard's bytes, the manifest without
    times and names of attempts."""
    manifest = result.manifest.model_dump(mode="json")
    dataset = load_dataset(result.path)
    shards = [
        storage.read_bytes(dataset.shard_path(entry))
        for entries in dataset.manifest.splits.values()
        for entry in entries
    ]
    manifest["quality"] = {
        key: value
        for key, value in manifest["quality"].items()
        if key not in ("seconds", "reject_files")
    }
    for entries in manifest["splits"].values():
        for entry in entries:
            del entry["name"], entry["index_name"]
    del manifest["created"], manifest["source"]
    return shards, manifest, rejected_rows(result)


def rejected_rows(result):
    names = result.manifest.quality["reject_files"]
    files = [pq.read_table(storage.join(result.path, name)) for name in names]
    return sorted((row["id"], row["reason"]) for file in files for row in file.to_pylist())


@pytest.fixture
def many(monkeypatch):
    """Lets an ETL of any size keep its stages."""
    monkeypatch.setattr("howdah.etl.build._MANY_ROWS", 1)


def some_rows(tmp_path):
    rows = [(text, "ab"[n % 2]) for n, text in enumerate(sentences(40))]
    return write_csv(tmp_path / "r.csv", [*rows, ("", "a"), rows[3], rows[7]])


@pytest.mark.parametrize(
    ("place", "name"),
    [
        (version, "_balanced"),
        pytest.param(shards, "plan_shards", marks=pytest.mark.full),
        pytest.param(shards, "write", marks=pytest.mark.full),
        pytest.param(pipeline, "commit", marks=pytest.mark.full),
    ],
)
def test_a_run_goes_on_from_what_a_killed_one_had_whole(
    spark, tmp_path, tiny_model_dir, monkeypatch, many, place, name
):
    source = some_rows(tmp_path)
    whole, _ = run(
        make_config(tmp_path, tiny_model_dir, source=source, dataset=str(tmp_path / "undisturbed"))
    )
    config = make_config(tmp_path, tiny_model_dir, source=source)
    killed(config, monkeypatch, place, name)
    monkeypatch.setattr("howdah.etl.build.from_text", die)
    if place is not version:
        monkeypatch.setattr(Scratch, "keep", die)
    result, lines = run(config)
    assert any(line.startswith("continuing from the 43 rows") for line in lines)
    assert content(result) == content(whole)
    assert not [e for e in storage.list_dir(result.path) if e.is_dir and "scratch" in e.name]


@pytest.mark.parametrize("most", [16, pytest.param(2, marks=pytest.mark.full)])
def test_a_run_encodes_only_the_pieces_that_a_killed_one_had_not(
    spark, tmp_path, tiny_model_dir, monkeypatch, many, most
):
    """`most`: pieces of the second run. Where they are other ones, none is taken for its own."""
    source = some_rows(tmp_path)
    whole, _ = run(
        make_config(tmp_path, tiny_model_dir, source=source, dataset=str(tmp_path / "undisturbed"))
    )
    monkeypatch.setattr("howdah.etl.workspace.scratch._FILE_ROWS", 4)
    config = make_config(tmp_path, tiny_model_dir, source=source)
    kept, keep = [], Scratch.keep

    def count(self, frame, name):
        kept.append(name)
        return keep(self, frame, name)

    def die_at_the_third_piece(self, frame, name):
        if len([name for name in kept if name.startswith("encoded-")]) == 2:
            die()
        return count(self, frame, name)

    with monkeypatch.context() as patch:
        patch.setattr(Scratch, "keep", die_at_the_third_piece)
        killed(config, monkeypatch, version, "_table")
    before, kept[:] = [name for name in kept if name.startswith("encoded-")], []
    monkeypatch.setattr(Scratch, "keep", count)
    monkeypatch.setattr("howdah.etl.workspace.scratch._MOST_PIECES", most)
    result, _ = run(config)
    assert len(before) == 2 and len(kept) >= (3 if most == 16 else 1)
    assert not set(before) & set(kept)
    assert content(result) == content(whole)


def test_an_interrupt_keeps_what_is_whole_and_bad_data_does_not(
    spark, tmp_path, tiny_model_dir, monkeypatch, many
):
    config = make_config(tmp_path, tiny_model_dir, source=some_rows(tmp_path))
    for error, stays in ((KeyboardInterrupt(), True), (ClusterError("lost"), True),
                         (DataError("bad"), False)):  # fmt: skip
        with monkeypatch.context() as patch:

            def fail(*_, error=error):
                raise error

            patch.setattr(pipeline, "commit", fail)
            with pytest.raises(HowdahError):
                run(config)
        versions = storage.list_dir(config.data.dataset)
        left = [e.name for version in versions for e in storage.list_dir(version.path)]
        assert [name.startswith("scratch-") for name in left] == [True] * stays


def test_what_is_whole_goes_when_it_is_damaged_or_outdated(
    spark, tmp_path, tiny_model_dir, monkeypatch, many
):
    config = make_config(tmp_path, tiny_model_dir, source=some_rows(tmp_path))
    directory = killed(config, monkeypatch, shards, "write")
    (scratch,) = [e for e in storage.list_dir(directory) if e.name.startswith("scratch-")]
    files = storage.list_dir(f"{scratch.path}/final")
    part = next(e for e in files if e.name.endswith(".parquet"))
    storage.write_whole(part.path, storage.read_bytes(part.path)[:-1])
    result, lines = run(config)
    assert not any(line.startswith("continuing from") for line in lines)
    assert sum(map(len, rows_of(result).values())) == 40
    storage.remove(config.data.dataset, recursive=True)

    killed(config, monkeypatch, shards, "write")
    other = make_config(
        tmp_path, tiny_model_dir, max_length=24, source=some_rows(tmp_path)
    )  # another version of the same dataset
    _, lines = run(other)
    assert any(line.startswith("removed ") for line in lines)
    assert len(storage.list_dir(config.data.dataset)) == 1
