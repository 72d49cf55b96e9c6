"""Labels of users, joined to predicted rows: each row once, whatever the file says how often."""

import csv
import types

import pandas as pd
import pytest

from howdah.config.data import CsvOptions
from howdah.config.loader import from_dict
from howdah.data.targets import label_mapping, label_name
from howdah.errors import DataError
from howdah.serving.prediction.classify import count_failed
from howdah.serving.prediction.rows import Prediction
from howdah.serving.scoring.labels import joined_file


@pytest.fixture
def labels(tmp_path):
    """Writes a CSV as a user's spreadsheet does."""

    def write(*rows):
        path = tmp_path / "labels.csv"
        with open(path, "w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\r\n").writerows([("id", "label"), *rows])
        return str(path)

    return write


def joined(path, predicted, names=None, messages=None, **csv_options):
    return joined_file(
        path, predicted, id_column="id", label_column="label", names=names,
        csv_options=CsvOptions(**csv_options),
        progress=(messages if messages is not None else []).append,
    )  # fmt: skip


def test_an_id_that_stands_twice_counts_once(labels):
    path = labels(("1", "pos"), ("1", "pos"), ("2", "neg"), ("9", "neg"))
    assert joined(path, {"1": "pos", "2": "pos", "3": "neg"}) == (2, 1)


def test_an_id_with_several_labels_is_left_out_and_named(labels):
    messages = []
    path = labels(("1", "pos"), ("1", "neg"), ("1", "neg"), ("2", "neg"))
    assert joined(path, {"1": "pos", "2": "neg"}, messages=messages) == (1, 1)
    assert "1 ids have several labels" in messages[0] and "'1'" in messages[0]
    with pytest.raises(DataError, match="has a label") as caught:
        joined(path, {"1": "pos"})
    assert "several labels" in caught.value.got


def test_labels_are_read_as_csv_is_configured(tmp_path):
    path, messages = str(tmp_path / "labels.csv"), []
    with open(path, "w", encoding="cp1252") as file:
        file.write("id;label\n1;gr\u00f6\u00dfer\n2;kleiner\n")
    predicted = {"1": "gr\u00f6\u00dfer", "2": "kleiner"}
    assert joined(path, predicted, delimiter=";", encoding="windows-1252") == (2, 2)
    assert joined(path, predicted, messages=messages, delimiter=";") == (1, 1)
    assert "1 rows cannot be read and are left out, such as the text is not in" in messages[0]
    with pytest.raises(DataError, match="no column 'label'") as caught:
        joined(path, predicted)
    assert "data.columns.label" in caught.value.remedy


@pytest.mark.spark
def test_a_table_of_labels_that_is_not_there_is_named(spark):
    from howdah.serving.scoring.labels import _truth

    with pytest.raises(DataError, match="no such table") as caught:
        _truth(spark, from_dict({}), "labels_of_nowhere", "id", "label")
    assert "labels_of_nowhere" in caught.value.where


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (["neg", "pos"], (2, 2)),  # the documented form: a list
        ({"-": "neg", "+": "pos"}, (2, 2)),
        (None, (2, 2)),
    ],
)
def test_labels_of_the_configuration_are_a_list_or_a_mapping(labels, setting, expected):
    config = from_dict({"data": {"labels": setting}})
    values = ("+", "-") if isinstance(setting, dict) else ("pos", " neg ")
    path = labels(("1", values[0]), ("2", values[1]))
    names = label_mapping(config.data)
    assert joined(path, {"1": "pos", "2": "neg"}, names) == expected


@pytest.mark.spark
def test_a_table_of_labels_counts_each_scored_row_once(spark):
    from howdah.serving.scoring.labels import _compared

    scored = spark.createDataFrame(
        [("1", "pos"), ("2", "pos"), ("3", "neg"), ("4", None), ("5", "neg")],
        "id string, label string",
    )
    truth = spark.createDataFrame(
        [(1, "+"), (1, " + "), (2, "-"), (3, "-"), (3, "+"), (4, "+"), (9, "+"), (None, "-")],
        "`k``ey` bigint, `said``` string",
    )
    counts = _compared(scored, truth, "k`ey", "said`", {"+": "pos", "-": "neg"})
    assert counts.asDict() == {"n": 2, "right": 1, "unclear": 1, "example": "3"}


@pytest.mark.spark
def test_labels_of_a_table_are_spelt_as_those_of_a_file(spark):
    """Each character of the basic plane (but halves of others) stands before, in and after one."""
    from howdah.serving.scoring.labels import _compared

    signs = [chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000] + ["\U000e0020"]
    values = [f"{sign}sp{sign}am{sign}" for sign in signs]
    values += ["spam\t", "spam\u00a0", "spam\u200b", "\u200b \ufeffspam \u200b\n", " \t "]
    rows = [(str(number), value) for number, value in enumerate(values)]
    truth = spark.createDataFrame(pd.DataFrame(rows, columns=["key", "said"]))
    scored = spark.createDataFrame(
        pd.DataFrame([(key, label_name(value)) for key, value in rows], columns=["id", "label"])
    )
    counts = _compared(scored, truth, "key", "said", None)
    assert (counts["n"], counts["right"]) == (len(rows), len(rows))
    counts = _compared(scored, truth, "key", "said", {"spam": "bad"})
    assert len(rows) - counts["right"] == sum(label_name(value) == "spam" for value in values)


def test_rows_without_a_text_are_not_failures():
    counted = {}
    profile = types.SimpleNamespace(add_failed=lambda **of: counted.update(of))
    count_failed(
        profile,
        [Prediction("1", None, None, "the text is empty"), Prediction("2", None, None, "x")],
    )
    assert counted == {"empty": 1, "errors": 1}
