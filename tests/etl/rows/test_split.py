"""Splits: sizes in rows, classes, groups, times, and what the data itself gives."""

import random
import re

import pytest

from howdah import storage
from howdah.config import loader as config_module
from howdah.config.options.split import SplitOptions, moment
from howdah.errors import ConfigError, DataError
from howdah.etl.rows import components, draw, split, units
from howdah.etl.sources.given import GIVEN, MOMENT
from howdah.etl.workspace.scratch import Scratch
from tests.etl.test_pipeline import make_config, rows_of, run, sentences, write_csv


# ------------------------------------------------------------------------------- configuration
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"test": 1.0}, "rows are a whole number"),
        ({"test": 2.5}, "rows are a whole number"),
        ({"validation": 0.6, "test": 0.5}, "below 1"),
        ({"column": "kind", "time": {"column": "at"}}, "give one of them"),
        ({"column": "kind", "sources": {"test": "t.csv"}}, "give one of them"),
        ({"column": "kind", "fold": "1/3"}, "leave out column"),
        ({"validation": 50, "fold": "1/3"}, "validation as a fraction is possible"),
        ({"stratify": 5, "fold": "1/3"}, "leave out stratify"),
        ({"stratify": 5, "time": {"column": "at"}}, "leave out stratify"),
        ({"values": {"a": "train"}}, "values needs column"),
        ({"column": "kind", "values": {"a": "test"}}, "nothing for train"),
        ({"column": "kind", "values": {"a": "train", "A ": "test"}}, "twice"),
        ({"time": {"test_from": "2026-01-01"}}, "need column"),
        ({"time": {"column": "at", "test_from": "yesterday"}}, "ISO 8601"),
        (
            {"time": {"column": "at", "validation_from": "2026-02-01", "test_from": "2026-01-01"}},
            "must not be later",
        ),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ConfigError) as caught:
        config_module.from_dict({"data": {"split": options}})
    assert message in str(caught.value)


def test_dates_and_numbers_of_yaml_are_moments(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text(
        "data: {split: {time: {column: at, validation_from: 2026-01-01, test_from: 2026-01-02}}}"
    )
    time = config_module.load(str(path)).data.split.time
    assert (time.validation_from, time.test_from) == ("2026-01-01", "2026-01-02")
    assert moment("2026-01-01T01:00:00+01:00") == moment("2026-01-01")
    assert moment("1970-01-01T00:00:00.000001") == 1.0 and moment("1.7e9") == 1.7e9


# ------------------------------------------------------------------------------------- drawing
CLASSES = {"a": 1_500, "b": 400, "c": 60, "d": 12, "e": 2}


def _rows(seed=3):
    """(label, reason, group): classes of `CLASSES`; groups of 1 to 4 rows of one class."""
    dice = random.Random(seed)
    rows = []
    for label, count in CLASSES.items():
        group, left = 0, count
        while left:
            size = min(left, dice.choice([1, 1, 1, 2, 4]))
            rows += [(label, None, f"{label}{group}")] * size
            group, left = group + 1, left - size
    return rows


def _drawn(spark, rows, options, partitions):
    """{group: split}; and (label, split) -> rows."""
    frame = spark.createDataFrame(rows, "label string, reason string, group string")
    temporary = []
    out = split.assign(frame.repartition(partitions), options, None, temporary).collect()
    for one in temporary:
        one.unpersist()
    splits, counts = {}, {}
    for row in out:
        assert splits.setdefault(row["group"], row["split"]) == row["split"]  # whole groups
        key = (row["label"], row["split"])
        counts[key] = counts.get(key, 0) + 1
    return splits, counts


@pytest.mark.spark
def test_each_class_has_its_share_of_each_split_in_whole_groups(spark, monkeypatch):
    options = SplitOptions(validation=0.1, test=0.2, stratify=10)
    splits, counts = _drawn(spark, _rows(), options, 3)
    for label, count in CLASSES.items():
        for name, share in (("test", 0.2), ("validation", 0.1)):
            assert abs(counts.get((label, name), 0) - count * share) <= 4, (label, name)
        if count >= 10:
            assert all(counts[label, name] for name in ("train", "validation", "test"))
    # ranks counted inside buckets of the hash are those of one sorted list
    monkeypatch.setattr(draw, "ROWS_PER_BUCKET", 50)
    assert draw.bucket_digits(1_000) == 2
    assert _drawn(spark, _rows()[::-1], options, 1)[0] == splits


@pytest.mark.spark
def test_the_tenths_of_a_regression_do_not_depend_on_partitions(spark, monkeypatch):
    dice = random.Random(3)
    rows = [(repr(round(dice.gauss(0, 1), 4)), None, f"g{n}") for n in range(8_000)]
    frame = spark.createDataFrame(rows, "label string, reason string, group string")
    for sampled in (100_000, 500):  # all of them, or a sample
        monkeypatch.setattr(draw, "_SAMPLED", sampled)
        cuts = {
            tuple(
                draw._tenths(frame.repartition(parts).selectExpr("group", "double(label) target"))
            )
            for parts in (1, 2, 8)
        }
        assert len(cuts) == 1 and len(*cuts) == 9
    ordered = sorted(float(label) for label, _, _ in rows)
    monkeypatch.setattr(draw, "_SAMPLED", 100_000)
    exact = draw._tenths(frame.selectExpr("group", "double(label) target"))
    assert exact == [ordered[len(rows) * n // 10 - 1] for n in range(1, 10)]


@pytest.mark.spark
def test_no_task_ranks_a_whole_class(spark):
    frame = spark.createDataFrame(_rows(), "label string, reason string, group string")
    frame_units = draw._units(frame, SplitOptions(stratify=10))
    strata = {n: draw.Stratum(units=9, goals={"test": 2.0}, fills=True) for n in range(5)}
    plan = draw._ranked(frame_units, strata)._jdf.queryExecution().optimizedPlan().toString()
    assert re.findall(r"\], \[(\w+)#\w+, (\w+)#\w+, (\w+)#\w+\], \[order#", plan) == [
        ("stratum", "large", "bucket")
    ]


@pytest.mark.spark
@pytest.mark.full
def test_a_size_in_rows_is_met_to_within_a_group(spark):
    options = SplitOptions(validation=100, test=333)
    rows = [*_rows(), *[("a", None, "large")] * 700, ("a", "too_short", "z")]
    splits, counts = _drawn(spark, rows, options, 3)
    sizes = {
        name: sum(n for (_, of), n in counts.items() if of == name)
        for name in ("test", "validation")
    }
    assert abs(sizes["test"] - 333) <= 4 and abs(sizes["validation"] - 100) <= 4
    assert splits["large"] == "train"  # larger than a split: it is not cut, and fills none
    with pytest.raises(DataError) as caught:
        _drawn(spark, rows, SplitOptions(validation=100, test=5_000), 3)
    assert "data.split.test" in str(caught.value) and "2,674" in str(caught.value)


@pytest.mark.spark
@pytest.mark.full
def test_the_newest_rows_are_found_without_sorting_all(spark):
    dice = random.Random(5)
    values = [float(dice.randrange(200)) for _ in range(900)] + [1e15 + n / 8 for n in range(100)]
    frame = spark.createDataFrame([(v,) for v in values], "moment double").persist()

    def newest(count):
        cut = draw.newest(frame, MOMENT, count)
        return cut, sum(v >= cut for v in values)

    for count in (1, 100):
        assert newest(count)[1] == count  # beyond 1e15 each is a moment of its own
    cut, newer_count = newest(505.5)
    shares = (sum(v >= other for v in values) for other in values)
    assert abs(newer_count - 505.5) == min(abs(n - 505.5) for n in shares) and cut in values
    assert draw.newest(frame.where("moment < 0"), MOMENT, 5) is None
    assert newest(0.3) == (max(values), 1)
    frame.unpersist()


@pytest.mark.spark
def test_infinite_moments_are_the_newest_and_the_oldest(spark):
    moments = [float("-inf"), -1e308, *map(float, range(8)), 1e308, float("inf")]
    frame = spark.createDataFrame([(one,) for one in moments], "moment double")
    assert draw.newest(frame, MOMENT, 4) == 6.0
    assert draw.newest(frame, MOMENT, 2) == 1e300  # both


# -------------------------------------------------------------------------------------- groups
def _joined(spark, rows, tmp_path, driver_edges):
    schema = "id string, reason string, group string, groups array<string>"
    temporary = []
    patched, scratch = pytest.MonkeyPatch.context(), Scratch(str(tmp_path / "v=0"), "0badcafe")
    with patched as patch, scratch:
        patch.setattr(components, "DRIVER_EDGES", driver_edges)
        frame = spark.createDataFrame(rows, schema).repartition(3)
        result = units.of_groups(frame, scratch, temporary)
        groups = {row["id"]: row["group"] for row in result.rows.collect()}
    for one in temporary:
        one.unpersist()
    return groups, result


@pytest.mark.spark
@pytest.mark.parametrize("driver_edges", [1_000, pytest.param(0, marks=pytest.mark.full)])
def test_users_threads_and_duplicates_are_joined_like_by_a_union_find(
    spark, tmp_path, driver_edges
):
    dice = random.Random(11)
    rows = []
    for n in range(300):
        user = f"user=u{dice.randrange(150)}" if dice.random() < 0.8 else None
        thread = f"thread=t{dice.randrange(400)}" if dice.random() < 0.5 else None
        copy = f"r{dice.randrange(n + 1):03d}" if dice.random() < 0.1 else f"r{n:03d}"
        rows.append((f"r{n:03d}", None, copy, [v for v in (user, thread) if v]))
    rows.append(("out", "empty", "r000", ["user=u0", "user=u1"]))  # rejected: joins nothing
    parent = {}

    def root(node):
        while parent.setdefault(node, node) != node:
            node = parent[node]
        return node

    for name, reason, copy, values in rows:
        for other in [] if reason else [f"copy={copy}", *values]:
            parent[root(name)] = root(other)
    groups, result = _joined(spark, rows, tmp_path, driver_edges)
    expected = {}
    for name, reason, _, _ in rows:
        if reason is None:
            expected.setdefault(root(name), set()).add(name)
    got = {}
    for name, group in groups.items():
        if name != "out":
            got.setdefault(group, set()).add(name)
    assert sorted(map(sorted, got.values())) == sorted(map(sorted, expected.values()))
    assert result.largest == max(map(len, got.values())) and result.joined > 20
    assert result.without == sum(not values for *_, values in rows) > 5
    names = {}  # a unit is named by the smallest of its rows' first values
    for name, reason, copy, values in rows:
        if reason is None:
            first = f"g:{values[0]}" if values else f"d:{copy}"
            names[root(name)] = min(first, names.get(root(name), first))
    assert all(group == names[root(name)] for name, group in groups.items() if name != "out")


# ---------------------------------------------------------------------------------- given splits
@pytest.mark.spark
def test_times_give_splits_by_cut_points_or_the_newest_share(spark):
    rows = [(f"r{n:02d}", float(n)) for n in range(40)]
    frame = spark.createDataFrame(rows, "id string, moment double")

    def splits(**options):
        options = SplitOptions(**options)
        rows_with_split, assignment = split.given_by(frame, options)
        assert assignment.drawn == []
        return {row["id"]: row[GIVEN] for row in rows_with_split.collect()}, assignment

    got, assignment = splits(validation=0.1, test=8, time={"column": "at"})
    assert [got[f"r{n:02d}"] for n in (0, 27, 28, 31, 32, 39)] == [
        "train", "train", "validation", "validation", "test", "test",
    ]  # fmt: skip
    assert assignment.rows == {"train": 28, "validation": 4, "test": 8}
    got, assignment = splits(validation=0, time={"column": "at", "test_from": "35"})
    assert assignment.rows == {"train": 35, "test": 5} and assignment.cuts == {"test": 35.0}
    with pytest.raises(DataError, match="all rows"):
        splits(test=40, time={"column": "at"})


def _official(tmp_path):
    """A CSV with splits: near and exact copies across them, users, and a line of no split."""
    texts = sentences(120)
    long = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
    rows = [(f"k{n:03d}", text, "ab"[n % 2], "train", f"u{n % 30}") for n, text in enumerate(texts)]
    rows[5::25] = [(*row[:4], " ") for row in rows[5::25]]  # of no user
    rows += [(f"t{n}", sentences(140)[120 + n], "ab"[n % 2], " TEST ", "x") for n in range(10)]
    rows += [
        ("t-one", long, "a", "test", "x"), ("t-two", long, "a", "test", "x"),
        ("near", long + "!", "b", "train", "u1"), ("near2", long + "?", "a", "train", "u2"),
        ("exact", sentences(140)[120], "b", "train", "u3"),
        ("none", "a row of no split", "a", "", "u4"),
    ]  # fmt: skip
    header = ("key", "text", "label", "kind", "user")
    return write_csv(tmp_path / "rows.csv", rows, header=header)


@pytest.mark.spark
@pytest.mark.full
def test_an_official_test_set_stays_whole_and_its_copies_leave_train(
    spark, tmp_path, tiny_model_dir
):
    settings = {"source": _official(tmp_path), "columns": {"id": "key"}, "dedup": {}}
    by_column = {"column": "kind", "validation": 20, "stratify": 10, "group": "user"}
    with pytest.raises(DataError) as caught:
        run(make_config(tmp_path, tiny_model_dir, **settings, split=by_column))
    assert "'no split' (1 rows)" in str(caught.value)
    settings["quality"] = {"unknown_label": "reject"}
    result, lines = run(make_config(tmp_path, tiny_model_dir, **settings, split=by_column))
    ids = {name: {e.id.decode() for e in part} for name, part in rows_of(result).items()}
    assert ids["test"] == {*(f"t{n}" for n in range(10)), "t-one", "t-two"}  # its copies too
    quality = result.manifest.quality
    assert quality["split"]["groups"]["without"] == 5
    assert "5 rows have no value in data.split.group (user)" in lines
    assert "5 rows have no value in any of the columns" in storage.read_text(result.report_path)
    assert quality["drops"] == {"bad_split": 1, "held_out_copy": 3}
    assert quality["split"]["given"] == {"train": 123, "test": 12}
    assert quality["split"]["drawn"] == ["validation"]
    assert ids["train"] | ids["validation"] == {f"k{n:03d}" for n in range(120)}
    users = {
        name: {int(i[1:]) % 30 for i in ids[name] if int(i[1:]) % 25 != 5}
        for name in ("train", "validation")
    }
    assert not users["train"] & users["validation"]
    assert abs(len(ids["validation"]) - 20) <= 4 and quality["split"]["groups"]["largest"] >= 4
    assert any("duplicates of rows of test" in line for line in lines)


@pytest.mark.spark
@pytest.mark.full
def test_an_official_test_set_in_a_file_of_its_own(spark, tmp_path, tiny_model_dir):
    texts = sentences(90)
    rows = [(str(n), text, "ab"[n % 2]) for n, text in enumerate(texts[:80])]
    source = write_csv(tmp_path / "rows.csv", rows, header=("key", "text", "label"))
    rows = [(str(n), text, "ab"[n % 2]) for n, text in enumerate([*texts[80:], texts[0] + "!"])]
    test = write_csv(tmp_path / "official.csv", rows, header=("key", "text", "label"))
    settings = {"source": source, "columns": {"id": "key"}, "dedup": {}}
    config = make_config(
        tmp_path, tiny_model_dir, **settings, split={"sources": {"test": test}, "validation": 0.3}
    )
    result, _ = run(config)
    ids = {name: {e.id.decode() for e in part} for name, part in rows_of(result).items()}
    assert ids["test"] == {f"test:{n}" for n in range(11)}  # keys of both files begin at 0
    assert ids["train"] | ids["validation"] == {str(n) for n in range(1, 80)}
    assert result.manifest.quality["drops"] == {"held_out_copy": 1}
    assert result.manifest.source["splits"]["test"]["files"][0][0] == test
    again, _ = run(config)
    assert again.unchanged
    write_csv(tmp_path / "official.csv", rows[:5], header=("key", "text", "label"))
    changed, _ = run(config)
    assert changed.hash != result.hash and changed.manifest.rows("test") == 5
