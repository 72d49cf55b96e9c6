"""The lessons on Spark: an event table and its settings, and the pipeline for 100 million texts."""

import pytest

from tests.support.lessons import run_lesson

pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def spark_lesson(tmp_path_factory):
    return run_lesson("08", tmp_path_factory.mktemp("spark-lesson"))


def test_a_set_of_categories_cannot_say_which_one_is_the_favorite(spark_lesson):
    figures = spark_lesson.figures
    assert figures["largest count of the course's code"] == 1
    assert figures["users with the right favorite category, the course's code"] < 90
    assert figures["users with the right favorite category, views counted"] == 100
    assert "Encountered null while assembling a row" in spark_lesson.output
    assert figures["random forest, AUC of the test users"] > 0.6
    assert figures["boosted trees, AUC of the test users"] > 0.6


def test_each_setting_changes_tasks_and_bytes_as_its_name_says(spark_lesson):
    figures, rows = spark_lesson.figures, "rows of the largest task"
    assert figures["shuffle partitions that Spark starts with"] == 200
    assert figures["work on a gzip file: tasks"] == 1
    assert figures["work, repartition: tasks"] == 9
    # Whole rows travel, where partial sums of each user would do.
    moved = figures["sums, repartition by user: shuffled"]
    assert moved > 2 * figures["sums by user: shuffled"]
    assert figures["join, broadcast: shuffled"] < figures["join: shuffled"]
    assert figures[f"join, adaptive: {rows}"] < figures[f"join: {rows}"]
    assert figures["sums, 200 partitions: tasks"] - figures["sums, 2 partitions: tasks"] == 198
    assert figures["sums, 200, adaptive: tasks"] < figures["sums, 200 partitions: tasks"]
    assert spark_lesson.pictures == ["settings.svg", "texts.svg"]


def test_udfs_of_all_kinds_give_the_same_sum(spark_lesson):
    lines = spark_lesson.output.splitlines()
    sums = [line.rpartition(" ")[2] for line in lines if line.startswith("log1p") and "sum" in line]
    assert len(sums) == 4
    assert len(set(sums)) == 1


def test_words_read_in_order_say_more_than_words_counted(spark_lesson):
    right = "texts with the right label"
    bert = spark_lesson.figures[f"DistilBERT, {right}"]
    assert bert > spark_lesson.figures[f"random forest, {right}"]


def test_a_thousandth_of_100_million_texts_goes_through_the_whole_pipeline(tmp_path):
    lesson = run_lesson("18", tmp_path)
    figures = lesson.figures
    assert figures["texts"] == 100_000
    dropped = figures["shorter than 20 characters"] + figures["copies"]
    assert figures["rows"] == 100_000 - dropped
    assert figures["tokens of a row, most"] <= 64
    assert figures["step that the second start goes on from"] == 20
    assert figures["weights"] == 335
    # Two moments and the weights, four bytes each, and what torch writes around them.
    assert figures["checkpoint"] >= 0.999 * 3 * figures["gradient of a step"]  # rounded figures
    assert lesson.pictures == ["efficiency.svg"]
