"""A node with an older glibc (Debian 11: 2.31) and no Python runs what is shipped."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyspark
import pytest
import yaml

from howdah.models.opened.opened import open_model
from howdah.models.runs.metrics_log import read_metrics
from howdah.packaging import environment, horovod, package
from tests.packaging.test_package import PREDICTION
from tests.runs import training_runs
from tests.runs.network import gloo_ranks
from tests.support import older_node
from tests.support.models.exported import base_of, write_export

pytestmark = [pytest.mark.full, pytest.mark.spark, pytest.mark.mpi]

_PROBE = """
import json, os, pwd, socket, sys
import numpy, pandas, pyarrow.parquet, hdfs_native, tokenizers
number = pwd.getpwnam(sys.argv[1]).pw_uid
maps = open("/proc/self/maps").read()
print(json.dumps({
    "glibc": os.confstr("CS_GNU_LIBC_VERSION"), "user": number,
    "host": socket.gethostbyname("localhost"), "module": "/usr/lib64/libnss_extrausers" in maps,
}))
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    """The node's root directory, with Howdah's wheel in it."""
    directory = tmp_path_factory.mktemp("node")
    root = older_node.make(directory)
    shutil.copy(package.wheel(str(directory)).path, root / "howdah.whl")
    return root


@pytest.fixture(scope="module")
def etl(tmp_path_factory):
    """The unpacked archive of the ETL."""
    place = tmp_path_factory.mktemp("etl")
    with tarfile.open(package.environment("etl").path) as archive:
        archive.extractall(place, filter="data")
    return place


@pytest.fixture(scope="module")
def dataset(node, etl, tmp_path_factory, tiny_model_dir):
    """A dataset whose Python tasks ran in the node; (its directory, the base)."""
    place = tmp_path_factory.mktemp("rows")
    base = str(place / "base")
    shutil.copytree(tiny_model_dir, base)
    python = place / "python"
    bound = [str(place), os.path.dirname(pyspark.__file__)]
    front = shlex.join(older_node.inside(node, etl, bound))
    python.write_text(
        f'#!/bin/sh\necho "$@" >>{place}/started\n'
        f'PYTHONPATH="$PYTHONPATH:/howdah.whl" exec {front} /env/bin/python "$@"\n'
    )
    python.chmod(0o755)
    draw = random.Random(3)
    words = {"sea": ["wave", "salt", "ship", "shore"], "land": ["hill", "stone", "road", "field"]}
    with open(place / "rows.csv", "w", encoding="utf-8") as file:
        file.write("text,label\n")
        for n in range(240):
            label = ("sea", "land")[n % 2]
            text = " ".join(draw.choices([*words[label], "the", "of", "and", "more"], k=12))
            file.write(f"{text} {n},{label}\n")
    for name, program in (("node", str(python)), ("here", sys.executable)):
        config = place / f"{name}.yaml"
        data = {
            "source": str(place / "rows.csv"), "dataset": str(place / name), "max_length": 64,
            "spark": {"master": "local[2]", "conf": {"spark.local.dir": str(place / "scratch")}},
        }  # fmt: skip
        config.write_text(yaml.safe_dump({"data": data, "model": {"base": base}}))
        done = subprocess.run(
            [sys.executable, "-m", "howdah.cli", "etl", "--config", str(config)],
            env=os.environ | {"PYSPARK_PYTHON": program}, capture_output=True, text=True,
            timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    return place, base


def run(argv: list[str], **variables: str) -> subprocess.CompletedProcess:
    done = subprocess.run(
        argv, env={"PATH": "/usr/bin:/bin:/usr/sbin", "PYTHONPATH": "/howdah.whl", **variables},
        capture_output=True, text=True, cwd="/", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def test_its_own_libraries_and_users_are_found(node, etl):
    name, number = older_node.USER
    version = run([*older_node.inside(node, etl), "getconf", "GNU_LIBC_VERSION"]).stdout
    assert version == "glibc 2.31\n"
    here = os.confstr("CS_GNU_LIBC_VERSION")
    done = run([*older_node.inside(node, etl), "/env/bin/python", "-c", _PROBE, name])
    seen = json.loads(done.stdout)
    assert seen == {"glibc": here, "user": number, "host": "127.0.0.1", "module": True}


def test_the_etl_s_tasks_write_the_same_bytes(dataset):
    place, _ = dataset
    assert "daemon pyspark.worker" in (place / "started").read_text()  # Spark's, or the ETL's own
    shards = {
        name: {
            # Without the token of its run, which a file's name has too.
            re.sub(r"\.[0-9a-f]{8}-", ".", str(path.relative_to(place / name))): path.read_bytes()
            for path in sorted((place / name).rglob("*.tfrecord*"))
        }
        for name in ("node", "here")
    }
    assert shards["node"] and shards["node"] == shards["here"]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_two_ranks_train(framework, node, dataset, tmp_path):
    place, base = dataset
    settings = {**training_runs.NO_DROPOUT, "training.max_steps": 6}
    here = training_runs.train(
        str(tmp_path / "here"), dataset=str(place / "node"), base=base, framework=framework, np_=2,
        settings=settings,
    )  # fmt: skip
    config = json.loads((tmp_path / "here/given.yaml").read_text())
    config["run"]["directory"] = str(tmp_path / "node")
    (tmp_path / "node.yaml").write_text(json.dumps(config))
    built = horovod.provide(framework, None, package.cache_directory())
    linked(environment.parts(framework, horovod=built), tmp_path / "env")
    front = older_node.inside(node, tmp_path / "env", [str(tmp_path), str(place)])
    argv = [*front, "/env/bin/python", "-P", "-m", "howdah.training", "--config",
            str(tmp_path / "node.yaml")]  # fmt: skip
    env = {"PYTHONPATH": "/howdah.whl", "PATH": "/usr/bin:/bin:/usr/sbin", "HOME": "/tmp"}
    rendezvous = gloo_ranks.Rendezvous()
    try:
        done = gloo_ranks.run([argv] * 2, env, rendezvous)
    finally:
        rendezvous.close()
        shutil.rmtree(tmp_path / "env")
    for code, text in done:
        assert code == 0, text[-4000:]
    losses = [line["loss"] for line in read_metrics(str(tmp_path / "node")) if "split" not in line]
    assert len(losses) == 6
    np.testing.assert_allclose(losses, here.losses(), rtol=1e-4)


def linked(parts: list, place: Path) -> None:
    """An environment's files, linked: gigabytes are neither packed nor copied."""
    for part in parts:
        target = place / part.name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(part.path or "", target)
        except OSError:
            with part.open() as source, open(target, "wb") as file:
                shutil.copyfileobj(source, file)
            target.chmod(0o755 if part.executable else 0o644)


def test_a_prediction(node, tmp_path):
    texts = ["the country and the town", "more and more", "of"]
    with tarfile.open(package.environment("score").path) as archive:
        archive.extractall(tmp_path / "env", filter="data")
    base = base_of(str(tmp_path / "base"), "distilbert")
    export = write_export(tmp_path / "export", base)
    here = open_model(export, framework="onnx", threads=1).scores(texts)
    front = older_node.inside(node, tmp_path / "env", [str(tmp_path)])
    done = run([*front, "/env/bin/python", "-c", PREDICTION, "/", export, json.dumps(texts)])
    np.testing.assert_array_equal(np.array(json.loads(done.stdout)["scores"], np.float32), here)
