"""Runs on pairs of texts, of a model that tells the texts apart by token types (BERT)."""

from __future__ import annotations

import csv
import functools
import json
import os

import numpy as np
import pytest

from howdah.data.encode import Encoder
from tests.fixtures.dataset import LABELS, build_dataset
from tests.runs.training_runs import LEARNING, howdah, train
from tests.support.models.tiny_families import write_family

FRAMEWORKS = ("torch", "tensorflow")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return write_family(str(tmp_path_factory.mktemp("pairs") / "bert"), "bert")


@pytest.fixture(scope="module")
def runs(bert, tmp_path_factory):
    """Runs by framework, made when they are asked for."""
    place = tmp_path_factory.mktemp("pairs")
    rows = {"train": 3000, "validation": 200, "test": 200}
    dataset = build_dataset(str(place / "v=1"), model_dir=bert, rows=rows, seed=3, pairs=True)

    @functools.cache
    def of(framework):
        return train(
            str(place / framework),
            dataset=dataset.path,
            base=bert,
            framework=framework,
            settings={
                **LEARNING,
                "data.columns.text_pair": "second",
                "training.max_steps": 300,
                "training.learning_rate": 0.003,
            },
        )

    return of


def _texts(bert: str) -> dict[str, str]:
    """{label: a text of words that only its rows prefer}."""
    encoder = Encoder.load(bert)
    part = (encoder.vocab_size - 5) // len(LABELS)
    texts = {}
    for n, label in enumerate(LABELS):
        ids = range(5 + n * part, 5 + (n + 1) * part)
        words = [encoder.decode(np.array([2, one, 3]), pairs=False) for one in ids]
        encoded = encoder.encode(words, 8)
        whole = [
            word for word, one, row in zip(words, ids, encoded, strict=True)
            if row.tolist() == [2, one, 3]
        ]  # fmt: skip
        texts[label] = " ".join(whole[:12])
    return texts


def test_the_class_of_the_second_text_is_learnt(runs):
    assert runs("torch").run_json()["metrics"]["test"]["accuracy"] > 0.8


@pytest.mark.full
def test_both_frameworks_learn_the_same_of_pairs(runs):
    losses = [np.array(runs(framework).losses()) for framework in FRAMEWORKS]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3, abs=1e-4)
    assert losses[0][:3] == pytest.approx(losses[1][:3], rel=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_files_of_pairs_are_predicted_by_both_columns(runs, bert, framework, tmp_path):
    export = os.path.join(runs(framework).directory, "export")
    texts = _texts(bert)
    pairs = [(one, two) for one in texts for two in texts if one != two]
    rows = [{"id": f"{one}-{two}", "text": texts[one], "second": texts[two]} for one, two in pairs]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with open(tmp_path / "in.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, ["id", "second", "text"])
        writer.writeheader()
        writer.writerows(rows)
    predictions = []
    for suffix in ("jsonl", "csv"):
        target = tmp_path / f"{suffix}.out.jsonl"
        source = str(tmp_path / f"in.{suffix}")
        places = ("--source", source, "--output", str(target), "--id-column", "id")
        howdah("predict", "--model", export, *places)
        predictions.append([json.loads(line) for line in target.read_text().splitlines()])
    tabs = "".join(f"{row['text']}\t{row['second']}\n" for row in rows)
    answers = howdah("predict", "--model", export, "--stdin", stdin=tabs)
    predictions.append([json.loads(line) for line in answers.splitlines()])
    right = [row["label"] == two for row, (_, two) in zip(predictions[0], pairs, strict=True)]
    assert sum(right) >= 10, right  # of 12
    for rows_found in predictions[1:]:
        for row, first in zip(rows_found, predictions[0], strict=True):
            assert row["scores"] == pytest.approx(first["scores"], abs=1e-5)
    assert [row["id"] for row in predictions[0]] == [row["id"] for row in rows]
