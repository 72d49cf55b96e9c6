"""The form's field `set`: lines of `key: value`, each read and checked as `--set key=value` is."""

from __future__ import annotations

import json
import re

import pytest

from howdah.airflow.form import left_out, trigger_form
from howdah.config import loader as configs
from howdah.errors import ConfigError
from howdah.policy import rules as policies
from howdah.policy.check import Judge


def made(text: str, **options) -> dict:
    return trigger_form.config({"set": text}, **options)


def problems_of(text: str, sent: dict | None = None, **options) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        trigger_form.config({**(sent or {}), "set": text}, **options)
    return [str(problem) for problem in caught.value.problems]


LINES = """\
# What this run is for
training.seed: 7

  training.warmup_ratio: 0.25
data.source: hdfs://nn:8020/news/2026-11-01
data.columns.text: [title, body]
evaluation.splits: [test]  # a list is YAML
gate.minimum: {accuracy: 0.9}
job.worker.memory: 4 GiB
job.env.OMP_NUM_THREADS: "2"
training.max_steps:
"""
TYPED = [
    "training.seed=7", "training.warmup_ratio=0.25", "data.source=hdfs://nn:8020/news/2026-11-01",
    "data.columns.text=[title, body]", "evaluation.splits=[test]", "gate.minimum={accuracy: 0.9}",
    "job.worker.memory=4 GiB", 'job.env.OMP_NUM_THREADS="2"', "training.max_steps=",
]  # fmt: skip


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_say_what_set_says(end):
    text = LINES.replace("\n", end)
    expected = configs.load(None, [*TYPED, "data.spark.master=local[*]"])
    assert made(text) == expected.model_dump(mode="json")


@pytest.mark.parametrize("text", [None, "", "\n\n", "# nothing\r\n"])
def test_an_empty_text_sets_nothing(text):
    assert made(text) == trigger_form.config({})


def test_each_error_names_its_line():
    text = "\n".join(
        (
            "training.learning_rte: 0.1",  # 1
            "# a comment",
            "training.seed",
            "- training.seed: 1",
            "training.seed=3: 1",
            "training.learning_rate: 7",  # 6
            "job.worker.memory: 4 GB",
            "data.columns.text: [a",
            "training.precision: fp32",  # 9
            "training.precision: bf16",
            "training:",
            "np: 2",  # 12
            "run.directory: /elsewhere",
            "tune.trials: 3",
            "run.name.x: 1",  # 15
            "seed: 3",
        )
    )
    problems = problems_of(text)
    for number, words in {
        1: "did you mean training.learning_rate?", 3: "not `key: value`", 4: "not `key: value`",
        5: "not `key: value`", 6: "less than 1", 7: "'4 GB'", 8: "not YAML",
        10: "training.precision is set twice (first on line 9)", 11: "sent as separate keys",
        12: "unknown key 'np'", 13: "the DAG run sets it", 14: "the installation's defaults set it",
        16: "send the key with its section",
    }.items():  # fmt: skip
        (problem,) = [one for one in problems if re.search(rf"set, line {number}\b", one)]
        assert words in problem, problem
    assert any("line 15" in problem for problem in problems)


def test_a_value_that_is_not_a_text_is_refused():
    (problem,) = problems_of(["training.seed: 1"])
    assert "must be a text" in problem


@pytest.mark.parametrize(
    "line",
    [
        "data.source: hdfs://user:hunter2@nn:8020/x", "job.env.HF_TOKEN: hunter2",
        "job.env: {AWS_SECRET_ACCESS_KEY: hunter2}", "yarn.files: ['https://u:hunter2@h/f']",
        "tracking.mlflow.uri: http://me:hunter2@mlflow:5000",
        "data.spark.conf: {spark.ssl.keyPassword: hunter2}",
    ],
)  # fmt: skip
def test_secrets_are_refused_and_not_repeated(line):
    text = "\n".join(problems_of(f"training.seed: 1\n{line}"))
    assert "hunter2" not in text
    assert "was sent" in text and "Connection" in text and "set, line 2" in text


def test_an_entry_is_added_to_the_installations_mapping():
    defaults = {"job": {"env": {"A": "1"}}, "np": 2}
    assert made("job.env.B: '2'", defaults=defaults)["job"]["env"] == {"A": "1", "B": "2"}
    assert made("job.env: {B: '2'}", defaults=defaults)["job"]["env"] == {"B": "2"}
    assert defaults == {"job": {"env": {"A": "1"}}, "np": 2}


def test_an_entry_beside_an_installations_secret_is_not_one():
    defaults = {"job": {"env": {"HF_TOKEN": "hunter2"}}}
    config = made("job.env.A: '1'", defaults=defaults)
    assert config["job"]["env"] == {"HF_TOKEN": "hunter2", "A": "1"}
    assert "hunter2" not in json.dumps(left_out.leave_out(config))  # what Airflow stores


def test_a_line_replaces_a_field_that_was_left_as_it_is():
    defaults = {"training": {"learning_rate": 0.01}}
    untouched = {each.name: each.default for each in trigger_form.fields(defaults=defaults)}
    config = trigger_form.config(
        {**untouched, "set": "training.learning_rate: 0.5"}, defaults=defaults
    )
    assert config["training"]["learning_rate"] == 0.5
    (problem,) = problems_of("training.learning_rate: 0.5", {"training.learning_rate": 0.2})
    assert "another in a line" in problem and "set, line 1" in problem
    same = {"training.learning_rate": 0.5, "set": "training.learning_rate: 0.5"}
    assert trigger_form.config(same)["training"]["learning_rate"] == 0.5


def test_the_policy_judges_each_line():
    judge = Judge(policies.from_dict({"keys": ["training", "data.source"]}), env={})
    assert made("training.seed: 7\njob.worker.memory: 6 GiB", judge=judge)["training"]["seed"] == 7
    problems = problems_of(
        "training.seed: 7\nrun.user: hdfs\ndata.source: /etc/passwd\n"
        "data.spark.conf: {spark.jars: /tmp/x.jar}\njob.env.LD_PRELOAD: /tmp/evil.so",
        judge=judge,
    )
    rules = {2: "`keys`", 3: "`roots`", 4: "`keys`", 5: "`keys`"}
    assert len(problems) == len(rules)
    for number, rule in rules.items():
        assert any(f"set, line {number}" in one and rule in one for one in problems), number
