"""The demo's configuration and script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
import yaml

from howdah import storage
from howdah.config import keys, load
from howdah.package import cache_directory
from tests.tiny_model import write_tiny_model
from tools import demo

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONFIG = os.path.join(ROOT, demo.CONFIG)


def test_the_configuration_is_valid_and_bounded():
    config = load(CONFIG)
    assert config.data.source == "docstrings:"
    assert config.training.max_steps is not None  # holds the demo to its ten minutes
    assert set(config.evaluation.splits) == {"validation", "test"}
    assert config.data.split.validation > 0
    assert config.data.split.test > 0
    # What the demo writes lies in one place that the repository ignores.
    with open(os.path.join(ROOT, ".gitignore")) as file:
        ignored = file.read().split()
    for path in (config.run.directory, config.data.dataset):
        assert f"/{path.split('/')[0]}/" in ignored


def test_every_key_of_it_does_something():
    """A key that only repeats the default would teach nothing, save those that are to be seen."""
    with open(CONFIG) as file:
        given = yaml.safe_load(file)
    shown = {"training.framework", "training.seed", "training.global_batch_size", "model.base",
             "training.lr_scheduler_type", "evaluation.metric"}  # fmt: skip

    def leaves(value, prefix=""):
        for key, item in value.items():
            if isinstance(item, dict):
                yield from leaves(item, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", item

    defaults = {name: field.get_default(call_default_factory=True) for name, field in keys()}
    for name, value in leaves(given):
        assert name in shown or defaults[name] != value, name


def test_its_words_are_a_valid_configuration():
    words = demo.settings("runs/demo/x", "/some/base", "torch", ["training.max_steps=3"])
    assert words[:2] == ["--config", demo.CONFIG]
    config = load(CONFIG, words[3::2])
    assert config.run.directory == "runs/demo/x"
    assert config.model.base == "/some/base"
    assert config.training.framework == "torch"
    assert config.training.max_steps == 3


def test_the_shell_script_is_sound():
    script = os.path.join(ROOT, "tools", "demo.sh")
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)


@pytest.fixture()
def small_demo(tmp_path):
    """(--set words, environment) of a demo with a tiny model and small packages' docstrings."""
    # The base model of the cache is the tiny one here, so that nothing is fetched.
    cache = tmp_path / "cache"
    write_tiny_model(str(cache / "models" / "random-small-distilbert"))
    # What is shipped to the nodes is packed once for all tests: it is found by its hash.
    os.makedirs(cache_directory(), exist_ok=True)
    os.symlink(cache_directory(), cache / "packages")
    overrides = {
        "run.directory": str(tmp_path / "runs" / "run"),
        "data.dataset": str(tmp_path / "dataset"),
        "data.docstring_packages": "[yaml, typer, jinja2]",
        "data.max_length": 32,
        "training.max_steps": 4,
        "training.precision": "fp32",
        "evaluation.every_steps": 4,
    }
    environment = os.environ | {
        "HOWDAH_CACHE": str(cache), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path),
        "PYTHONPATH": ROOT, "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"],
    }  # fmt: skip
    return overrides, environment


def run_demo(
    module: str, *words: str, overrides: dict, environment: dict, timeout: float = 280
) -> str:
    """What the demo prints as its result."""
    sets = [word for key, value in overrides.items() for word in ("--set", f"{key}={value}")]
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words, *sets],
        cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except BaseException:  # a hang, or Ctrl-C: the demo's own commands end with it
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, stderr[-4000:]
    assert "NO PRETRAINED WEIGHTS" in stderr
    assert "RANDOM base" in stdout
    assert all(text in stdout for text in demo.SAMPLES)
    return stdout


def check_run(runs: str, framework: str, shown: str) -> None:
    found = [e.path for e in storage.list_dir(runs) if e.name.startswith(framework)]
    (run_directory,) = [path for path in found if not path.endswith("-elastic")]
    run = storage.read_json(storage.join(run_directory, "run.json"))
    assert run["status"] == "finished"
    assert f"{run['metrics']['test']['accuracy']:.4f}" in shown
    for name in ("report.html", "export/model.safetensors", "config.yaml"):
        assert storage.exists(storage.join(run_directory, name))


@pytest.mark.spark
@pytest.mark.parametrize("framework", ["tensorflow", pytest.param("torch", marks=pytest.mark.full)])
def test_the_demo_from_end_to_end(tmp_path, small_demo, framework):
    overrides, environment = small_demo
    shown = run_demo(
        "tools.demo", "--framework", framework, overrides=overrides, environment=environment
    )
    check_run(str(tmp_path / "runs"), framework, shown)


# `full`: each of its steps has a quick test of its own (test_etl_yarn.py, test_training_hdfs.py).
@pytest.mark.hadoop
@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_the_demo_on_a_cluster(cluster, hadoop_env, small_demo, framework):
    """A Hive table, ETL and training as YARN applications, a worker lost, everything on HDFS."""
    overrides, environment = small_demo
    del overrides["run.directory"], overrides["data.dataset"]
    shown = run_demo(
        "tools.demo_cluster", "--framework", framework, "--directory", str(cluster.directory),
        "--elastic-steps", "3000",  # of a tiny model: it must still run when the worker is killed
        overrides=overrides, environment=environment, timeout=880,
    )  # fmt: skip
    elastic = storage.find(f"{cluster.hdfs_url}/howdah-demo/runs/{framework}-*-elastic/run.json")
    assert storage.read_json(elastic[-1])["status"] == "finished"
    check_run(f"{cluster.hdfs_url}/howdah-demo/runs", framework, shown)
    listed = cluster.run("yarn", "application", "-list", "-appStates", "FINISHED").stdout
    assert "SUCCEEDED" in listed
    again = cluster.run("hdfs", "dfs", "-ls", "/howdah-demo/dataset").stdout
    assert again.count("/v=") == 1
