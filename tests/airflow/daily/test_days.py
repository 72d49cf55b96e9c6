"""Which day a run is for, whose turn it is, what a task touches: pure decisions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from howdah.airflow.daily import days
from howdah.airflow.form import daily as settings
from howdah.airflow.lineage import touched
from howdah.config.loader import from_dict
from howdah.config.model import Config
from howdah.config.options.partition import expanded, is_files, parse, text_of
from howdah.errors import ConfigError

DAY = datetime(2026, 11, 1, tzinfo=UTC)


# ----------------------------------------------------------------------------------- partitions
_NAMES = st.text("abcxyz_09", min_size=1, max_size=6).filter(lambda name: not name[0].isdigit())
_VALUES = st.text("abcXYZ019 .:-", min_size=1, max_size=9).filter(lambda text: text[0] != " ")


@given(st.dictionaries(_NAMES, _VALUES, min_size=1, max_size=3))
def test_a_partition_is_read_back_as_it_was_written(values):
    assert parse(text_of(values)) == values


@pytest.mark.parametrize(
    "bad", ["", "ds", "ds=", "=x", "ds=a/b", "ds=a/ds=b", "d s=1", "ds=a\n", "ds=a=b", "/ds=1"]
)
def test_what_names_no_partition_is_refused_with_what_it_said(bad):
    with pytest.raises(ConfigError) as caught:
        parse(bad)
    assert caught.value.got == repr(bad)


def test_a_path_has_the_values_and_keeps_other_braces():
    assert expanded("hdfs:///in/{ds}/{a,b}-{country}", "country=de/ds=1") == "hdfs:///in/1/{a,b}-de"
    with pytest.raises(ConfigError, match="a column that the partition lacks") as caught:
        expanded("hdfs:///in/{dt}/{a,b}", "ds=1")
    assert (caught.value.expected, caught.value.got) == ("{ds}", "{dt}")
    assert not is_files("news.texts") and not is_files("cat.news.texts")
    assert is_files("/in/x") and is_files("texts.parquet") and is_files("hdfs:///in/{ds}")


# ------------------------------------------------------------------------------------------ days
def event(**partitions):
    return {"rows": 3, "howdah": {"data.partitions": partitions, "data.source": "other"}}


def test_events_name_their_days_each_once_in_order():
    extras = [event(ds=["2"]), {}, None, event(ds=["1", "2"]), {"howdah": {}}]
    assert days.of_events(extras) == ["ds=2", "ds=1"]
    assert days.of_events([event(country=["de", "at"], ds="1")]) == [
        "country=de/ds=1", "country=at/ds=1",
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="cannot be read"):
        days.of_events([{"howdah": {"data.partitions": "ds=1"}}])


def test_partitions_of_one_run_are_one_data_partitions_or_refused():
    assert days.merged(["ds=1", "ds=3"]) == {"ds": ["1", "3"]}
    assert days.merged(["a=x/ds=1", "a=y/ds=1"]) == {"a": ["x", "y"], "ds": ["1"]}
    with pytest.raises(ConfigError, match="differ in one column"):
        days.merged(["a=x/ds=1", "a=y/ds=2"])
    with pytest.raises(ConfigError, match="the same columns"):
        days.merged(["ds=1", "day=1"])


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("ds=%Y-%m-%d", "ds=2026-10-30"),
        ("day=%Y%m%d", "day=20261030"),
        ("hour=%Y%m%d%H", "hour=2026103000"),
        ("country=de/ds=%Y-%m-%d", None),  # a walk over ds would score other countries too
        ("ds=%Y-%m-%d/hour=%H", None),
        ("ds=%d.%m.%Y", None),  # in the order of text 01.11. is before 30.10.
        ("month=%m", None),
        ("version=latest", None),
    ],
)
def test_earlier_days_are_walked_where_partitions_are_in_their_order(pattern, expected):
    assert days.since(pattern, datetime(2026, 11, 2), 3) == expected
    assert days.since(pattern, datetime(2026, 11, 2), 0) is None


def test_the_cool_down_counts_from_the_beginning_of_the_last_one():
    assert days.cooling(None, DAY, 20) is None
    assert days.cooling(DAY - timedelta(hours=19), DAY, 20) == DAY + timedelta(hours=1)
    assert days.cooling(DAY - timedelta(hours=20), DAY, 20) is None
    assert days.cooling(DAY, DAY, 0) is None


# -------------------------------------------------------------------------------------- settings
def test_settings_have_defaults_and_every_problem_is_named():
    assert settings.from_defaults({}).partition == "ds=%Y-%m-%d"
    assert settings.from_defaults({"daily": {"retrain": {"after": []}}}).retrain.after == ()
    wrong = {"partition": "%Y", "wait_hours": 0, "shedule": None, "retrain": {"cooldown": 1}}
    with pytest.raises(ConfigError) as caught:
        settings.from_defaults({"daily": wrong})
    message = str(caught.value)
    for part in ("names no partition", "wait_hours", "did you mean schedule", "cooldown_hours"):
        assert part in message


def test_a_time_zone_has_to_exist():
    assert settings.from_defaults({"daily": {"timezone": "Asia/Tokyo"}}).timezone == "Asia/Tokyo"
    with pytest.raises(ConfigError) as caught:
        settings.from_defaults({"daily": {"timezone": "Mars/Olympus"}})
    assert "Europe/Vienna" in str(caught.value)


def test_what_the_installations_daily_dags_name_is_allowed_and_no_more():
    config = from_dict(
        {
            "data": {"source": "news.texts", "format": "hive"},
            "publish": {"directory": "hdfs:///models", "name": "news"},
        }
    )
    section = {"retrain": {"source": "/in/days/{ds}.csv"}, "ready": "/w/ds={ds}/_SUCCESS"}
    daily = settings.from_defaults({"daily": section})
    assert settings.granted(daily, config) == (
        ["news.texts", "news.texts_scored"], ["hdfs:///models/news", "/w", "/in/days"],
    )  # fmt: skip


# ------------------------------------------------------------------------------------------ turns
def turns(**runs):
    """{run: (state of turn, state of teardown)}"""
    return {run: {"turn": a, "teardown": b} for run, (a, b) in runs.items()}


def test_a_run_waits_for_those_that_have_begun_and_for_earlier_days():
    states = turns(
        backfill__1=("success", "success"), backfill__2=("success", None),
        backfill__3=(None, None), backfill__4=("up_for_reschedule", None),
        backfill__5=("scheduled", None), manual__a=("failed", "upstream_failed"),
    )  # fmt: skip

    def of(me):
        return days.ahead(states, me, turn="turn", last="teardown")

    assert of("backfill__4") == ["backfill__2", "backfill__3"]
    assert of("backfill__3") == ["backfill__2"]
    states["backfill__2"]["teardown"] = "failed"
    assert of("backfill__3") == []
    # Of all that wait at once exactly one goes.
    waiting = ["backfill__3", "backfill__4", "backfill__5"]
    assert [me for me in waiting if not of(me)] == ["backfill__3"]


# ---------------------------------------------------------------------------------------- lineage
HADOOP = {"fs.defaultFS": "hdfs://nn:8020", "hive.metastore.uris": "thrift://meta:9083,thrift://b"}
PLACES = touched.places_of({}, HADOOP, "/jobs")


@pytest.mark.parametrize(
    ("name", "space", "full"),
    [
        ("news.texts", "hive://meta:9083", "news.texts"),
        ("table:scored", "hive://meta:9083", "default.scored"),
        ("spark_catalog.news.texts", "hive://meta:9083", "news.texts"),
        ("hdfs:///data/news", "hdfs://nn:8020", "/data/news"),
        ("hdfs://ns1/data/", "hdfs://ns1", "/data"),
        ("s3://bucket/a/b", "s3://bucket", "a/b"),
        ("rows.csv", "file", "/jobs/rows.csv"),
        ("file:///x/../y", "file", "/y"),
        ("webhdfs://user:secret@nn:9870/d", "webhdfs://nn:9870", "/d"),
        ("hdfs:///in/day?.csv", "hdfs://nn:8020", "/in/day?.csv"),  # a pattern, not a query
        ("s3://bucket/news #1", "s3://bucket", "news #1"),
        ("file:///in/news#1.csv", "file", "/in/news#1.csv"),
    ],
)
def test_names_follow_the_naming_specification(name, space, full):
    qualified = PLACES.of(name)
    assert (qualified.namespace, qualified.name) == (space, full)


def test_what_each_command_touches():
    config = Config().model_dump(mode="json")
    config["data"] |= {
        "source": "news.texts", "format": "hive", "partitions": {"ds": ["1", "2"]},
        "dataset": "hdfs:///sets/news",
    }  # fmt: skip
    config["model"]["init_from"] = "hdfs:///models/news@3"
    begun = touched.etl(PLACES, config, None)
    assert begun.outputs[0].version is None
    made = {"dataset": "hdfs:///sets/news/v=abc1", "rows": {"train": 5, "test": 2}}
    done = touched.etl(PLACES, config, made)
    (source,), (dataset,) = done.inputs, done.outputs
    assert source.partitions == ({"ds": "1"}, {"ds": "2"})
    assert (dataset.name, dataset.version, dataset.rows) == ("/sets/news", "abc1", 7)

    run = touched.trained(PLACES, config, {"run_id": "r1"})
    assert [item.name for item in run.inputs] == ["/sets/news", "/models/news"]
    assert run.inputs[1].version == "3" and run.outputs[0].version == "r1"
    out = touched.published(PLACES, config, {"version": 4, "run_id": "r1"})
    assert out.inputs[0].name == run.outputs[0].name  # one node of the graph
    assert (out.outputs[0].version, out.facts["version"]) == ("4", "4")

    day = touched.scored(
        PLACES, source="news.texts", output="news.scored", model="hdfs:///models/news",
        partitions=["ds=1"], made={"version": 4, "partitions": [{"rows": 9}]},
    )  # fmt: skip
    assert day.outputs[0].rows == 9 and day.outputs[0].partitions == ({"ds": "1"},)
    assert day.inputs[1].version == "4"
