"""BERT, RoBERTa and XLM-RoBERTa from a table to predictions, in both frameworks and divided.

The ETL runs in the session's Spark, everything else as the commands that a user types.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from howdah.config.loader import dump_yaml, from_dict
from howdah.data.manifest import Dataset, load_dataset
from tests import ROOT
from tests.fixtures.spark import etl
from tests.runs.training_runs import NO_DROPOUT, train
from tests.support.models.tiny_families import FAMILY_NAMES, write_family
from tests.support.models.tiny_model import words

pytestmark = [pytest.mark.spark, pytest.mark.full]
LIMIT = 280  # seconds; detects a hang
ODD = ["\u4e2d\u6587 \U0001f600 <s> [CLS] </s><pad>", "Caf\u00e9 e\u0301 " * 40]

PIPELINE = """
import json, sys
from transformers import pipeline
directory, texts = sys.argv[1], json.loads(sys.argv[2])
classify = pipeline("text-classification", model=directory, truncation=True, top_k=None)
print(json.dumps([{row["label"]: row["score"] for row in rows} for rows in classify(texts)]))
"""


def command(*argv: str, code: int = 0) -> str:
    """The output of a command."""
    done = subprocess.run(
        [sys.executable, *argv], capture_output=True, text=True, timeout=LIMIT, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "USE_TF": "0"},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def made(spark, tmp_path_factory) -> Callable[[str], tuple[str, Dataset]]:
    """(base, dataset) of a family, made of one table when it is first asked for."""
    place = tmp_path_factory.mktemp("families")
    rng = np.random.default_rng(4)
    with open(place / "rows.csv", "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows([text, "odd"] for text in ODD)
        for number in range(160):
            label = ("even", "odd")[number % 2]
            part = words()[number % 2 : 800 : 2]  # each label has words of its own
            writer.writerow([" ".join(rng.choice(part, rng.integers(4, 30))), label])

    @cache
    def make(name: str) -> tuple[str, Dataset]:
        base, data = write_family(str(place / name), name), str(place / f"{name}-data")
        config = from_dict(
            {
                "data": {
                    "source": str(place / "rows.csv"),
                    "dataset": data,
                    "max_length": 40,
                    "split": {"validation": 0.15, "test": 0.15},
                },
                "model": {"base": base},
            }
        )
        path = place / f"{name}.yaml"
        path.write_text(dump_yaml(config))
        assert etl(["--config", str(path)]) == 0
        return base, load_dataset(data)

    return make


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_from_a_table_to_predictions(made, name, framework, tmp_path):
    base, dataset = made(name)
    assert dataset.manifest.tokenizer.pad_id == (0 if name == "bert" else 1)
    run = train(
        str(tmp_path / "run"), dataset=dataset.path, base=base, framework=framework,
        settings={
            "training.max_steps": 2,
            "data.max_length": 40,
            "evaluation.splits": ["validation", "test"],
        },
    )  # fmt: skip
    assert len(run.losses()) == 2 and np.isfinite(run.losses()).all()
    accuracy = run.run_json()["metrics"]["test"]["accuracy"]
    assert accuracy is not None
    export = os.path.join(run.directory, "export")

    config = os.path.join(run.directory, "given.yaml")
    output = command("-m", "howdah.cli", "evaluate", "--config", config, "--json")
    assert json.loads(output)["metrics"]["accuracy"] == pytest.approx(accuracy, abs=1e-9), output

    # clean already: transformers would not clean them
    texts = [ODD[0], "Caf\u00e9 \u4e2d\u6587 \U0001f600" + " words" * 60, "the good town"]
    source, out = tmp_path / "new.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    command(
        "-m", "howdah.cli", "predict", "--model", run.directory, "--source", str(source),
        "--output", str(out),
    )  # fmt: skip
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    theirs = json.loads(command("-c", PIPELINE, export, json.dumps(texts)))
    for text, row, scores in zip(texts, rows, theirs, strict=True):
        if "<" in text:  # to transformers the names of special tokens are the tokens
            continue
        assert row["scores"] == pytest.approx(scores, abs=1e-5), text


LAYOUTS = {
    "zero-1": {"training.parallel.shard": "optimizer"},
    "fsdp2": {"training.parallel.shard": "full"},
}


@pytest.mark.parametrize("name", FAMILY_NAMES)
def test_divided_runs_take_the_steps_of_one_rank(made, name, tmp_path):
    """The pooler, which is no part of `head`, and the token types included."""
    base, dataset = made(name)
    settings = {"training.max_steps": 3, "data.max_length": 40, **NO_DROPOUT}
    settings |= {"model.freeze_layers": 1}
    one = train(str(tmp_path / "one"), dataset=dataset.path, base=base, settings=settings)
    assert len(one.losses()) == 3
    whole = one.tensors(3)
    for layout, layout_settings in LAYOUTS.items():
        finished = train(
            str(tmp_path / layout), dataset=dataset.path, base=base, np_=2, kind="torchrun",
            settings=settings | layout_settings,
        )  # fmt: skip
        assert finished.losses() == pytest.approx(one.losses(), abs=2e-5), layout
        tensors = finished.tensors(3)
        assert tensors.keys() == whole.keys(), layout
        for key, array in whole.items():
            if key.startswith("model/"):
                np.testing.assert_allclose(tensors[key], array, atol=2e-3, err_msg=key)
    frozen = [key for key in whole if key.startswith("adam_m/")]
    assert not any(".layer.0." in key for key in frozen)
    classifier = "bert.pooler.dense" if name == "bert" else "classifier.dense"
    assert f"adam_m/{classifier}.weight" in frozen


def test_frameworks_take_the_same_steps(made, tmp_path):
    for name in ("bert", "roberta"):
        base, dataset = made(name)
        losses = [
            train(
                str(tmp_path / name / framework), dataset=dataset.path, base=base,
                framework=framework,
                settings={"training.max_steps": 4, "data.max_length": 40, **NO_DROPOUT},
            ).losses()
            for framework in ("torch", "tensorflow")
        ]  # fmt: skip
        assert losses[0] == pytest.approx(losses[1], abs=2e-5)
