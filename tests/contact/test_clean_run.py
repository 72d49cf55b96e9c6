"""A run on a fresh dataset prints the lines that a user expects, and no other."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest
import yaml

from howdah.core.processes import LIMITS
from tests import ROOT
from tests.support.rows.word_rows import write_rows

_ETL = [
    r"source \S+rows\.csv \(csv\); Spark on local\[\*\]",
    *(rf"{n}/6 [a-zA-Z ]+: \d+\.\d s" for n in range(1, 7)),
    r"read 240 rows: 240 are usable",
    r"kept 240 rows; dropped none",
    r".*27 test.*",  # near duplicates that were looked for
    r"wrote 3 shards",
    r"committed \S+ \(train 185, validation 28, test 27 rows\)",
    r"dataset written: \S+",
    r"rows: train 185, validation 28, test 27",
    r"report: \S+/report\.html",
    r"Look at this:",  # data.max_length is 32 here
    r"- 100\.0 % of the rows \(240 of 240\) have 32 tokens or more: .*",
    r"      data:",
    r"        max_length: 64",
    r"next: howdah train --config run\.yaml --set data\.max_length=32 .*",
]
_TRAIN = [
    r"185 rows, 12 steps per epoch, 14 in all; fp32(; 2 processes)?",
    r"starting from the base model",
    r"step 10/14 loss .*",
    r"validation at step 12: loss .*",
    r"step 14/14 loss .*",
    r"validation at step 14: loss .*",
    r"the model of step 1[24] on validation: loss .*",
    r"the model of step 1[24] on test: loss .*",
    r"exported step 1[24] to /\S+/export",
    r"(Good|Not good|Inconclusive): .*",
    r"test macro_f1 0\.\d{4} \(95 %: 0\.\d{4} to [01]\.\d{4}\); the baseline [01]\.\d{4}",
    r"report: /\S+/report\.html",
    r"next: .*howdah publish --config run\.yaml .*",
]

_SLOW = r"(starting the framework|reading the dataset|evaluating|exporting|profile|collecting).*"
"""Lines of phases, printed only where the machine needs more than 3 s for them."""


def howdah(*words: str, cwd, **env: str) -> list[str]:
    """The lines of a command, both streams together, as a user's terminal has them."""
    done = subprocess.run(
        [sys.executable, "-m", "howdah.cli", *words], cwd=cwd, text=True, timeout=280,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env=os.environ
        | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", LIMITS: "{}"}  # as a user has it
        | env,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout.splitlines()


def expect(lines: list[str], patterns: list[str]) -> None:
    """Each line is one that is expected, each once."""
    left = list(patterns)
    for line in lines:
        if re.fullmatch(r"\d/6 [a-zA-Z ]+ \.\.\.", line):  # a stage that takes long here
            continue
        pattern = next((one for one in left if re.fullmatch(one, line)), None)
        assert pattern is not None, f"unexpected line: {line}\n" + "\n".join(lines)
        left.remove(pattern)
    assert not left, "\n".join(lines)


_SETTINGS = [
    f"--set={one}"
    for one in (
        "data.max_length=32", "data.spark.driver_memory=1g", "training.max_steps=14",
        "training.global_batch_size=16", "training.threads_per_rank=1", "training.precision=fp32",
    )
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_model_dir):
    """A folder with the configuration that `config init` has written of a file, and its dataset;
    the lines of the command that made it."""
    folder = tmp_path_factory.mktemp("clean")
    write_rows(folder / "rows.csv")
    cache = folder / "cache"
    shutil.copytree(tiny_model_dir, cache / "models" / "minilm-l6-distilbert-0")
    words = ("config", "init", "run.yaml", "--source", "rows.csv")
    lines = howdah(*words, cwd=folder, HOWDAH_CACHE=str(cache))
    assert lines == [f"written: {folder}/run.yaml", "next: howdah etl --config run.yaml"]
    written = yaml.safe_load((folder / "run.yaml").read_text())
    assert written["model"]["base"] == str(cache / "models" / "minilm-l6-distilbert-0")
    assert written["gate"] == {"min_over_baseline": 0}
    checked = howdah("config", "check", "--config", "run.yaml", cwd=folder)
    assert yaml.safe_load("\n".join(checked))["data"]["source"] == str(folder / "rows.csv")
    return folder, howdah("etl", "--config", "run.yaml", *_SETTINGS, cwd=folder)


@pytest.mark.spark
def test_the_etl_prints_what_it_did(place):
    expect(place[1], _ETL)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("framework", "np"),
    [pytest.param("torch", 1, marks=pytest.mark.full), ("tensorflow", 1), ("torch", 2)],
)
def test_training_prints_what_it_does(place, framework, np):
    comm = ("--set", "training.comm=torch") if np > 1 else ()
    lines = howdah(
        "train", "--config", "run.yaml", *_SETTINGS, "--np", str(np), *comm,
        "--set", f"training.framework={framework}",
        "--set", f"run.directory=runs/{framework}-{np}", cwd=place[0],
    )  # fmt: skip
    lines = [re.sub(r" waits for input \d+%", "", line) for line in lines]
    lines = [line for line in lines if not re.fullmatch(_SLOW, line)]
    # The first run on the dataset version measures the baseline; the others find it.
    measures = "measuring the baseline, TF-IDF with logistic regression"
    expect(lines, [*_TRAIN, *([measures] if measures in lines else [])])
    (beside,) = place[0].glob("datasets/*/baselines/*/*")
    assert sorted(os.listdir(beside)) == ["baseline.json", "baseline.npz"]
