"""Which partitions are chosen, and when one is done: without Spark, tables and clocks."""

from __future__ import annotations

import dataclasses
import os
import time

import numpy as np
import pyarrow as pa
import pytest

from howdah.config.options.partition import parse_spec
from howdah.errors import DataError, UsageError
from howdah.models import scored
from howdah.models.decision import Decision
from howdah.serving.scoring import marker as markers
from howdah.serving.scoring.executor import _batch, columns_of, profiles
from howdah.serving.scoring.partition import sweep
from howdah.serving.scoring.selection import Selection, chosen

DAYS = [{"ds": f"2026-11-{day:02d}", "country": c} for day in (3, 1, 2, 10) for c in ("at", "de")]
COLUMNS = ["ds", "country"]


def names(partitions):
    return [f"{one['ds'][-2:]}{one['country']}" for one in partitions]


def choose(**fields):
    return names(chosen(Selection(**fields), COLUMNS, DAYS, table="db.t"))


def test_partitions_are_chosen_by_name_prefix_and_range_oldest_first():
    assert choose(partitions=("ds=2026-11-02/country=de", "ds=2026-11-01")) == [
        "01at", "01de", "02de",
    ]  # fmt: skip
    assert choose(partitions=("country=at", "ds=2026-11-03/country=at"))[-1] == "10at"
    assert choose(since="ds=2026-11-03") == ["03at", "03de", "10at", "10de"]
    assert choose(since="DS=2026-11-02", until="ds=2026-11-02") == ["02at", "02de"]
    numbers = [{"day": day} for day in ("9", "10", "11")]
    partitions = chosen(Selection(since="day=10"), ["day"], numbers, table="t")
    assert [one["day"] for one in partitions] == ["10", "11"]


def test_a_partition_that_is_not_there_is_refused_with_the_newest_ones():
    with pytest.raises(DataError) as caught:
        choose(partitions=("ds=2026-12-01",))
    assert "ds=2026-11-10/country=de, ds=2026-11-10/country=at" in caught.value.expected
    with pytest.raises(DataError) as caught:
        choose(partitions=("ds=2026-12-01", "ds=2026-11-01", "ds=2026-12-02"))
    assert [one.got for one in caught.value.problems] == ["ds=2026-12-01", "ds=2026-12-02"]
    with pytest.raises(DataError, match="no such partition"):
        choose(since="ds=2027-01-01")
    with pytest.raises(DataError, match="not partitioned by day"):
        choose(partitions=("day=1",))
    with pytest.raises(DataError) as caught:
        chosen(Selection(since="ds=1"), ["ds"], [], table="t")
    assert "none yet" in caught.value.expected


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"partitions": ("ds=1",), "since": "ds=1"},
        {"partitions": ("ds",)},
        {"partitions": ("ds=1/ds=2",)},
        {"partitions": ("ds=",)},
        {"since": "ds=1/country=at"},
    ],
)
def test_a_selection_that_says_nothing_or_too_much_is_refused(fields):
    with pytest.raises(UsageError):
        Selection(**fields)


def test_values_with_a_slash_keep_it():
    assert parse_spec("path=a%2Fb%25", "--partition") == {"path": "a/b%"}
    made = markers.directory_of("m", "Db.T", {"path": "a/b", "ds": "../.."})
    assert made == "m/scored/db.t/path=a%2Fb/ds=..%2F.."


# ------------------------------------------------------------------------------------- markers
SOURCE = markers.files_of("hdfs://nn/t/ds=1", [["hdfs://nn/t/ds=1/a", 7, 1.0]])
OUTPUT = markers.files_of("hdfs://nn/o/ds=1", [["hdfs://nn/o/ds=1/b", 9, 2.0]])
MODEL = {"name": "news", "version": 3, "run_id": "run-5", "weights_sha256": "abc"}
OPTIONS = {"text": ["words"], "separator": " ", "id": "key"}
DONE = scored.Marker(
    model=MODEL, source_table="db.t", source=SOURCE, options=OPTIONS, output_table="db.o",
    output=OUTPUT, partition="ds=1", rows=2, errors=1, labels={"a": 1},
    reasons=[{"error": "the text is empty", "rows": 1, "example": "k"}], profile=None,
    framework="torch", scored_at="2026-11-01T00:00:00+00:00", seconds=1.0,
)  # fmt: skip
WANTED = markers.Inputs(model=MODEL, source=SOURCE, options=OPTIONS)


def reason(marker=DONE, target=WANTED, output=OUTPUT, *, profile=False, force=False):
    return markers.reason(marker, target, output, profile=profile, force=force)


def test_a_partition_is_skipped_only_if_all_it_was_made_from_is_as_it_was():
    other = markers.files_of("hdfs://nn/t/ds=1", [["hdfs://nn/t/ds=1/a", 7, 1.5]])
    moved = markers.files_of("hdfs://nn/u/ds=1", [["hdfs://nn/t/ds=1/a", 7, 1.0]])
    assert reason() is None
    for changed, message in (
        (reason(None), "not scored yet"),
        (reason(target=dataclasses.replace(WANTED, model={**MODEL, "version": 4})), "by v=3"),
        (
            reason(target=dataclasses.replace(WANTED, model={**MODEL, "weights_sha256": "x"})),
            "weights",
        ),
        (reason(target=dataclasses.replace(WANTED, model={**MODEL, "run_id": "x"})), "weights"),
        (reason(target=dataclasses.replace(WANTED, source=other)), "source has changed"),
        (reason(target=dataclasses.replace(WANTED, source=moved)), "source has changed"),
        (reason(target=dataclasses.replace(WANTED, options={**OPTIONS, "id": None})), "columns"),
        (reason(output=None), "gone"),
        (reason(output=other), "another process"),
        (reason(profile=True), "no profile"),
        (reason(force=True), "--force"),
    ):
        assert changed is not None and message in changed
    assert reason(dataclasses.replace(DONE, profile="profile.json"), profile=True) is None


def test_an_export_with_another_decision_scores_its_partitions_again():
    export = {**MODEL, "version": None, "decision": None}
    done = dataclasses.replace(DONE, model=export)
    target = dataclasses.replace(WANTED, model={**export, "decision": "b" * 16})
    assert "another decision" in reason(done, target)
    assert reason(done, dataclasses.replace(WANTED, model=export)) is None


def test_a_marker_is_read_as_it_was_written_and_another_format_is_none(tmp_path):
    directory = str(tmp_path / "ds=1")
    assert scored.read(directory) is None
    markers.write(directory, DONE)
    assert scored.read(directory) == DONE
    path = tmp_path / "ds=1" / scored.MARKER
    path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 2'))
    assert scored.read(directory) is None
    path.write_text('{"format_version": 1}')
    assert scored.read(directory) is None


# ---------------------------------------------------------------------------------- rows, counts
class Served:
    """What `_batch` asks of a ServedModel."""

    def __init__(self, task, labels):
        self.task, self.labels, self.run_id = task, labels, "run-5"
        self.rule = Decision().rule(task, labels)


@pytest.mark.parametrize(
    ("task", "label", "scores", "expected"),
    [
        ("single_label", "b", [0.25, 0.75], {"label": "b", "score": 0.75, "margin": 0.5}),
        ("multi_label", ["b"], [0.25, 0.625], {"labels": ["b"], "score": 0.625, "margin": 0.125}),
        ("regression", 2.5, [2.5], {"value": 2.5}),
    ],
)
def test_rows_of_each_task_have_its_columns(task, label, scores, expected):
    from howdah.serving.prediction.rows import Prediction

    rows = [
        Prediction("k", label, np.array(scores, np.float32)),
        Prediction("n", None, None, "the text is empty"),
    ]
    made = _batch(Served(task, ["a", "b"]), rows)
    assert made.schema.names == [*columns_of(task), "run_id"]
    good, bad = made.to_pylist()
    assert {name: good[name] for name in expected} == expected
    if task != "regression":
        assert dict(good["scores"]) == dict(zip(["a", "b"], scores, strict=True))
        assert pa.types.is_map(made.schema.field("scores").type)
    assert {name for name, value in bad.items() if value is not None} == {"id", "error", "run_id"}


class Counting:
    """A profile that counts."""

    def __init__(self, rows):
        self.rows = rows

    def merge(self, other):
        self.rows += other.rows


def test_a_task_that_runs_twice_counts_once_in_the_profile():
    pytest.importorskip("pyspark")
    add = profiles().addInPlace
    total = profiles().zero((frozenset(), None))
    for number, rows in ((0, 3), (1, 4), (0, 3), (2, 5)):
        total = add(total, (frozenset({number}), Counting(rows)))
    assert total[1].rows == 12 and total[0] == {0, 1, 2}


def test_only_old_leftovers_of_the_partition_are_removed(tmp_path):
    old = time.time() - 2 * 24 * 3600
    names = {
        ".tmp-model=news.0123abcd": True, ".old-model=news.0123abcd": True,
        ".tmp-model=other.0123abcd": False, ".tmp-model=news.0123abce": False,
        ".tmp-model=news.0123abcf": False, "model=news": False,
    }  # fmt: skip
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "part-0").touch()
        for path in (tmp_path / name / "part-0", tmp_path / name):
            os.utime(path, (old, old))
    (tmp_path / ".tmp-model=news.0123abce" / "part-0").touch()  # still being written
    os.utime(tmp_path / ".tmp-model=news.0123abcf")
    lines = []
    sweep(f"file:{tmp_path}/model=news", lines.append)
    assert {name for name, gone in names.items() if not gone} == set(os.listdir(tmp_path))
    assert len(lines) == 2
