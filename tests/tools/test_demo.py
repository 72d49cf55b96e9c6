"""The demo's configuration and script."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pyarrow.parquet as pq
import pytest
import yaml

from howdah import storage
from howdah.config.loader import keys, load
from howdah.core.processes import LIMITS, process_start
from howdah.errors import DataError
from howdah.packaging.package import cache_directory
from tests import ROOT as REPOSITORY
from tests.fixtures.spark import COMPILED
from tests.support.models.tiny_model import write_tiny_model
from tests.support.waiting import wait_until
from tools.demo import corpus, steps

ROOT = str(REPOSITORY)
CONFIG = os.path.join(ROOT, steps.CONFIG)


def test_the_configuration_is_valid_and_bounded():
    config = load(CONFIG)
    assert config.training.max_steps is not None  # holds the demo to its ten minutes
    assert set(config.evaluation.splits) == {"validation", "test"}
    assert config.data.split.validation > 0
    assert config.data.split.test > 0
    # What the demo writes lies in one place that the repository ignores.
    with open(os.path.join(ROOT, ".gitignore")) as file:
        ignored = file.read().split()
    for path in (config.run.directory, config.data.dataset, config.data.source):
        assert f"/{path.split('/')[0]}/" in ignored


def test_every_key_of_it_does_something():
    """A key that only repeats the default would teach nothing, save those that are to be seen."""
    with open(CONFIG) as file:
        sections = yaml.safe_load(file)
    shown = {"training.framework", "training.seed", "training.global_batch_size", "model.base",
             "training.lr_scheduler_type", "evaluation.metric"}  # fmt: skip

    def leaves(value, prefix=""):
        for key, item in value.items():
            if isinstance(item, dict):
                yield from leaves(item, f"{prefix}{key}.")
            else:
                yield f"{prefix}{key}", item

    defaults = {name: field.get_default(call_default_factory=True) for name, field in keys()}
    for name, value in leaves(sections):
        assert name in shown or defaults[name] != value, name


def test_its_words_are_a_valid_configuration():
    words = steps.settings("runs/demo/x", "/some/base", "torch", ["training.max_steps=3"])
    assert words[:2] == ["--config", steps.CONFIG]
    config = load(CONFIG, words[3::2])
    assert config.run.directory == "runs/demo/x"
    assert config.model.base == "/some/base"
    assert config.training.framework == "torch"
    assert config.training.max_steps == 3


def test_the_shell_script_is_sound():
    script = os.path.join(ROOT, "tools", "demo.sh")
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_ended_takes_its_command_along(tmp_path, number):
    (tmp_path / "slow.py").write_text(
        "import os, time\n"
        "open('pid.part', 'w').write(str(os.getpid()))\n"
        "os.rename('pid.part', 'pid')\n"
        "time.sleep(600)\n"
    )
    demo = subprocess.Popen(
        [sys.executable, "-c", "from tools.demo import steps; steps.module('slow')"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"},
    )  # fmt: skip
    try:
        wait_until((tmp_path / "pid").exists)
    finally:
        demo.send_signal(number)
    command = int((tmp_path / "pid").read_text())
    demo.wait(60)
    wait_until(lambda: process_start(command) is None)


def test_a_server_that_does_not_answer_ends_the_demo_with_a_word(tmp_path, monkeypatch, capsys):
    server = tmp_path / "python"
    server.write_text('#!/bin/sh\necho \'{"url": "http://127.0.0.1:1"}\'\nexec sleep 600\n')
    server.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(server))
    with pytest.raises(SystemExit) as caught:
        steps.ask_a_server("export")
    assert caught.value.code == 1 and "the server did not answer" in capsys.readouterr().err


# ---------------------------------------------------------------------------------- the corpus
def test_without_a_file_the_corpus_says_what_it_needs():
    argv = [sys.executable, "-m", "tools.demo.corpus"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("usage: ")


def test_docstrings_of_a_package(tmp_path, monkeypatch):
    package = tmp_path / "samplepack"
    (package / "sub").mkdir(parents=True)
    (package / "tests").mkdir()
    (package / "__init__.py").write_text('"""Module text."""\n')
    (package / "sub" / "code.py").write_text(
        'class A:\n    """Class text."""\n    def f(self):\n        """Twice."""\n'
        '    def f(self):\n        """Twice, again."""\n        def inner():\n'
        '            "Inner text."\nasync def g():\n    if True:\n        def h(): "Deep."\n'
    )
    (package / "broken.py").write_text("def (:\n")
    (package / "tests" / "test_it.py").write_text('"""Not wanted."""\n')
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = list(corpus.corpus(["samplepack"]))
    assert [row for row in rows if row[1]] == [
        ("samplepack:__init__.py:<module>", "Module text.", "samplepack"),
        ("samplepack:sub/code.py:A", "Class text.", "samplepack"),
        ("samplepack:sub/code.py:A.f", "Twice.", "samplepack"),
        ("samplepack:sub/code.py:A.f#2", "Twice, again.", "samplepack"),
        ("samplepack:sub/code.py:A.f.inner", "Inner text.", "samplepack"),
        ("samplepack:sub/code.py:g.h", "Deep.", "samplepack"),
    ]
    assert list(corpus.corpus(["samplepack"])) == rows
    before = corpus.identity(["samplepack"])
    assert corpus.identity(["samplepack"], 3) != before
    (package / "__init__.py").write_text('"""Module next."""\n')  # as long as before
    assert corpus.identity(["samplepack"]) != before
    (package / "__init__.py").write_text("")
    (package / "sub" / "code.py").unlink()
    with pytest.raises(DataError, match="no docstrings"):
        corpus.write(str(tmp_path / "rows.parquet"), ["samplepack"])
    with pytest.raises(DataError, match="no_such_pack"):
        corpus.corpus(["no_such_pack"]).__next__()


def test_the_projects_list_is_a_corpus_of_many_classes():
    packages = corpus.PACKAGES
    assert len(packages) >= 8 and list(packages) == sorted(set(packages))
    assert all(len(corpus.package_files(package)) > 50 for package in packages)


def test_the_demo_takes_some_rows_of_each_package_and_mostly_their_first_paragraphs():
    whole = {row_id: text for row_id, text, _ in corpus.corpus(["networkx"])}
    rows = list(corpus.corpus(["networkx"], 300))
    assert len({row_id for row_id, *_ in rows}) == 300 < len(whole)
    cut = sum(len(text) < len(whole[row_id].strip()) for row_id, text, _ in rows)
    long = [text for row_id, text, _ in rows if text == whole[row_id] and "\n\n" in text]
    assert cut > 150 and long, (cut, len(long))
    assert all(whole[row_id].lstrip().startswith(text.lstrip()) for row_id, text, _ in rows)


def test_the_corpus_is_written_once_and_over_no_other_file(tmp_path):
    path = tmp_path / "runs" / "docstrings.parquet"
    assert corpus.write(str(path), ["yaml", "typer"])
    table, before = pq.read_table(path), path.stat()
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert rows == list(corpus.corpus(["yaml", "typer"]))
    assert table.column_names == ["id", "text", "label"]
    assert not corpus.write(str(path), ["yaml", "typer"])
    # a second demo finds its dataset by the file's time
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert corpus.write(str(path), ["yaml"])
    assert set(pq.read_table(path)["label"].to_pylist()) == {"yaml"}
    other = tmp_path / "rows.csv"
    other.write_text("text,label\n")
    with pytest.raises(DataError, match="not the demo's corpus"):
        corpus.write(str(other), ["yaml"])
    assert other.read_text() == "text,label\n" and len(list(path.parent.iterdir())) == 1


# ------------------------------------------------------------------------------ the whole demo
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
        "data.source": str(tmp_path / "docstrings.parquet"),
        "data.max_length": 32,
        "training.max_steps": 4,
        "training.precision": "fp32",
        "evaluation.every_steps": 4,
    }
    environment = os.environ | {
        "SPARK_SUBMIT_OPTS": COMPILED,  # as its users have it
        LIMITS: "{}",
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
        [sys.executable, "-m", module, *words, *sets, "--packages", "yaml", "typer", "jinja2"],
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
    assert all(text in stdout for text in steps.SAMPLES)
    return stdout


def check_run(runs: str, framework: str, shown: str) -> None:
    paths = [e.path for e in storage.list_dir(runs) if e.name.startswith(framework)]
    (run_directory,) = [path for path in paths if not path.endswith("-elastic")]
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


# `full`: each of its steps has a quick test of its own (tests/etl/launch/test_yarn.py,
# tests/training/test_hdfs.py).
@pytest.mark.hadoop
@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_the_demo_on_a_cluster(cluster, hadoop_env, small_demo, framework):
    """A Hive table, ETL and training as YARN applications, a worker lost, everything on HDFS."""
    overrides, environment = small_demo
    del overrides["run.directory"], overrides["data.dataset"], overrides["data.source"]
    shown = run_demo(
        "tools.demo.cluster", "--framework", framework, "--directory", str(cluster.directory),
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
