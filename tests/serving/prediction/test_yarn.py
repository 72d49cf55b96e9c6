"""`howdah predict --master yarn`: executors with nothing installed, by each runtime."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from howdah import storage
from howdah.config import loader as config_module
from howdah.data.encode import Encoder
from howdah.errors import ConfigError, ModelError
from howdah.models.export.export import export
from howdah.models.export.run_info import RunInfo
from howdah.models.version import Version, open_version
from howdah.models.weights.pretrained import load_base
from howdah.serving.prediction import cluster as predict_cluster
from tests.fixtures.etl_yarn import SPARK

TEXTS = ["the  cat", "of and", None, "", *(f"{'in ' * n}to" for n in range(1, 60))]
KEYS = [f"k{n:02d}" for n in range(len(TEXTS))]

# Makes or reads a table of the metastore, in a process of its own: METASTORE WAREHOUSE STATEMENT...
SQL = """
import json, sys
from howdah.config.data import SparkOptions
from howdah.spark.session import session
metastore, warehouse, *statements = sys.argv[1:]
conf = {"spark.hadoop.hive.metastore.uris": metastore, "spark.sql.warehouse.dir": warehouse,
        "spark.sql.shuffle.partitions": "1"}
options = SparkOptions(master="local[1]", driver_memory="640m", conf=conf)
with session(options, hive=True) as spark:
    for statement in statements:
        found = [row.asDict() for row in spark.sql(statement).collect()]
print("FOUND " + json.dumps(found))
"""


class Predictions:
    """`howdah predict` on the cluster, with a model on its HDFS."""

    def __init__(self, cluster, directory, local_model, framework, place):
        self.cluster, self.directory, self.place = cluster, directory, place
        self.local_model, self.framework = local_model, framework
        self.model = f"{directory}/models/m"
        for name in os.listdir(local_model):
            storage.upload(os.path.join(local_model, name), f"{self.model}/{name}")
        self.warehouse = f"{directory}/warehouse"
        self.score = {}

    def config(self, **conf):
        """Path of a configuration: small executors, the metastore."""
        spark = {**SPARK, "conf": {**SPARK["conf"], **conf}}
        spark["conf"]["spark.hadoop.hive.metastore.uris"] = self.cluster.metastore_uri
        spark["conf"]["spark.sql.warehouse.dir"] = self.warehouse
        made = config_module.from_dict({"data": {"spark": spark}, "score": self.score})
        path = self.place / "predict.yaml"
        path.write_text(config_module.dump_yaml(made))
        return str(path)

    def run(self, *words, limit=500):
        """(exit code, the JSON object, stderr)."""
        done = subprocess.run(
            [sys.executable, "-m", "howdah.cli", "predict", *words, "--json"],
            env=self.cluster.env, capture_output=True, text=True, timeout=limit, check=False,
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return done.returncode, json.loads(lines[-1]) if lines else None, done.stderr

    def on_yarn(self, *words, conf=None):
        """The same on YARN, with the model on HDFS."""
        fixed = ["--model", self.model, "--config", self.config(**(conf or {}))]
        fixed += ["--framework", self.framework]
        columns = ["--text-column", "words", "--id-column", "key"]
        return self.run(*fixed, "--master", "yarn", *columns, *words)

    def sql(self, *statements):
        """Rows of the last statement."""
        done = subprocess.run(
            [sys.executable, "-c", SQL, self.cluster.metastore_uri, self.warehouse, *statements],
            env=self.cluster.env, capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        line = next(line for line in done.stdout.splitlines() if line.startswith("FOUND "))
        return json.loads(line.removeprefix("FOUND "))

    def expected(self):
        """{key: row}, by one process of this machine."""
        source, output = str(self.place / "in.parquet"), str(self.place / "one.parquet")
        pq.write_table(rows(), source)
        words = ["--source", source, "--output", output]
        columns = ["--text-column", "words", "--id-column", "key"]
        code, _, err = self.run(
            "--model", self.local_model, "--framework", self.framework, *words, *columns
        )
        assert code == 0, err
        return {row["id"]: row for row in pq.read_table(output).to_pylist()}

    def check(self, answer, predicted):
        """Rows equal those of one process; executors ran with the shipped environment."""
        expected = self.expected()
        assert sorted(row["id"] for row in predicted) == KEYS
        for row in predicted:
            want = expected[row["id"]]
            assert (row["label"], row["error"]) == (want["label"], want["error"])
            if want["scores"] is not None:
                np.testing.assert_allclose(row["scores"], want["scores"], atol=1e-5)
        assert answer["rows"] == len(KEYS) and answer["errors"] == 2 and answer["run_id"] == "run-5"
        assert answer["application"].startswith("application_")
        about = answer["workers"]
        assert about["count"] >= 1 and about["opened"] == 1
        nodes = os.path.realpath(self.cluster.directory)
        for prefix in about["python"]:
            assert os.path.realpath(prefix).startswith(nodes), about
            kind = predict_cluster.environment_kind(self.framework)
            assert f"/howdah-{kind}-" in prefix and "/.venv" not in prefix
        print(f"{self.framework}: {about}")


def rows():
    return pa.table({"key": KEYS, "words": TEXTS})


@pytest.fixture
def predictions(request, healthy_cluster, hadoop_env, hdfs_dir, tiny_model_dir, tmp_path):
    framework = request.param
    base = load_base(tiny_model_dir)
    rng = np.random.default_rng(2)
    head = {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in base.family.head_shapes(base.config, 3).items()
    }
    info = RunInfo(
        run_id="run-5", max_length=16, clean={"whitespace": True},
        framework="torch" if framework == "onnx" else framework,
        base={"source": "tiny", "hash": base.hash},
        tokenizer_hash=Encoder.load(tiny_model_dir).hash,
    )  # fmt: skip
    model = export(
        str(tmp_path / "export"), weights=base.weights | head, base_config=base.config,
        tokenizer_files=base.tokenizer_files, label_names=["a", "b", "c"], run_info=info,
    )  # fmt: skip
    yield Predictions(healthy_cluster, hdfs_dir, model, framework, tmp_path)
    healthy_cluster.end_applications()


on_yarn = [
    pytest.mark.hadoop,
    pytest.mark.spark,
    pytest.mark.timeout(1500),
    # In every run: without YARN test_spark.py; an environment shipped to YARN's containers where
    # the ETL runs, tests/etl/launch/test_yarn.py.
    pytest.mark.full,
    pytest.mark.parametrize("predictions", ["onnx", "tensorflow", "torch"], indirect=True),
]


def marked(test):
    for mark in on_yarn:
        test = mark(test)
    return test


@marked
def test_from_parquet_to_parquet_on_hdfs(predictions, tmp_path):
    source, output = f"{predictions.directory}/in.parquet", f"{predictions.directory}/out"
    pq.write_table(rows(), tmp_path / "rows.parquet", row_group_size=8)
    storage.upload(str(tmp_path / "rows.parquet"), f"{source}/part.parquet")
    storage.write_whole(f"{output}/part-00000-before.parquet", b"to be replaced")
    words = ["--source", source, "--output", output]
    code, answer, err = predictions.on_yarn(*words)
    assert code == 5 and answer["error"] == "AlreadyExists", err
    code, answer, err = predictions.on_yarn(*words, "--overwrite")
    assert code == 0, err
    assert "for Python (weights of" in err and "Traceback" not in err
    predicted = []
    for entry in storage.list_dir(output):
        if entry.name.endswith(".parquet"):
            storage.download(entry.path, str(tmp_path / entry.name))
            predicted += pq.read_table(tmp_path / entry.name).to_pylist()
    predictions.check(answer, predicted)
    names = {entry.name for entry in storage.list_dir(predictions.directory, unfinished=True)}
    assert names == {"in.parquet", "models", "out"}


@pytest.mark.hadoop
@pytest.mark.spark
@pytest.mark.timeout(1500)
@pytest.mark.full  # in every run without YARN: test_files.py
@pytest.mark.parametrize("predictions", ["onnx"], indirect=True)
def test_csv_and_json_lines_on_hdfs(predictions, tmp_path):
    """Whole CSV files are read by Howdah's own storage on the nodes, lines by Spark."""
    directory = predictions.directory
    predictions.score = {"max_error_fraction": 0.5}  # of two and three rows one cannot be read
    one = 'key,words\nk1,"the\ncat"\nk2,of,and\n'
    storage.write_whole(f"{directory}/csv/1.csv", one.encode())
    storage.write_whole(f"{directory}/csv/2.csv", b"words,more,key\nin the,x,k3\n")
    storage.write_whole(f"{directory}/json/1.jsonl", b'{"key": 1.10, "words": 1.10}\n[1]\n')
    errors = {}
    for name in ("csv", "json"):
        output = f"{directory}/{name}-out"
        words = ["--source", f"{directory}/{name}", "--output", output]
        code, answer, err = predictions.on_yarn(*words)
        assert code == 0 and answer["errors"] == 1, err
        for entry in storage.list_dir(output):
            if entry.name.endswith(".parquet"):
                storage.download(entry.path, str(tmp_path / entry.name))
                for row in pq.read_table(tmp_path / entry.name).to_pylist():
                    errors[row["id"] if row["error"] is None else name] = row["error"]
    assert set(errors) == {"k1", "k3", "csv", "1.10", "json"}
    assert "3 fields instead of 2" in errors["csv"] and "list instead of" in errors["json"]


@pytest.mark.full  # in every run: Parquet on YARN, above; a Hive table without YARN: test_spark.py
@marked
def test_from_a_hive_table_to_a_hive_table(predictions):
    name = "predict_" + predictions.directory.rpartition("/")[2]
    source, target = f"{name}.texts", f"{name}.predicted"
    values = ", ".join(
        f"('{key}', {'NULL' if text is None else repr(text)})"
        for key, text in zip(KEYS, TEXTS, strict=True)
    )
    predictions.sql(
        f"CREATE DATABASE {name} LOCATION '{predictions.directory}/{name}.db'",
        f"CREATE TABLE {source} (key string, words string) STORED AS ORC",
        f"INSERT INTO {source} VALUES {values}",
    )
    code, answer, err = predictions.on_yarn("--source", source, "--output", f"table:{target}")
    assert code == 0, err
    predicted = predictions.sql(f"SELECT * FROM {target}")
    assert {row["run_id"] for row in predicted} == {"run-5"}
    predictions.check(answer, predicted)


@pytest.mark.hadoop
@pytest.mark.spark
@pytest.mark.timeout(900)
@pytest.mark.full
@pytest.mark.parametrize("predictions", ["tensorflow"], indirect=True)
def test_more_memory_than_any_node_has_is_an_error_that_names_it(predictions, tmp_path):
    source = f"{predictions.directory}/in.parquet"
    pq.write_table(rows(), tmp_path / "rows.parquet")
    storage.upload(str(tmp_path / "rows.parquet"), source)
    words = ["--source", source, "--output", f"{predictions.directory}/out"]
    code, answer, err = predictions.on_yarn(*words, conf={"spark.executor.memoryOverhead": "20g"})
    assert code == 5 and answer["error"] == "ClusterError", err
    assert "20480" in answer["got"] and "data.spark" in answer["remedy"] and "Traceback" not in err


def test_paths_of_this_machine_are_refused_on_yarn(tmp_path):
    from howdah.serving.prediction.predict import predict

    for source, output, where in (
        ("rows.parquet", "hdfs://nn/out", "--source"),
        ("hdfs://nn/rows.parquet", "out", "--output"),
    ):
        with pytest.raises(ConfigError) as caught:
            predict("m", source, output, master="yarn")
        assert caught.value.where == where and "hdfs" in caught.value.expected


# ----------------------------------------------------------------------- what executors are given
def test_a_model_is_described_without_reading_its_weights(tmp_path, tiny_model_dir):
    files = predict_cluster.files_of(open_version(tiny_model_dir))
    base = load_base(tiny_model_dir)
    assert files.decoded_bytes == sum(4 * array.size for array in base.weights.values())
    assert files.hidden_dim == base.config["hidden_dim"]
    urls = files.urls()
    assert set(urls) == {f"howdah-model-{files.key}.{name}" for name in files.files}
    assert all(url.startswith("file:///") for url in urls.values())

    copy = tmp_path / "a, b"
    shutil.copytree(tiny_model_dir, copy)
    with pytest.raises(ConfigError, match="cannot hold the model's path"):
        predict_cluster.files_of(open_version(str(copy))).urls()
    (copy / "model.safetensors").write_bytes(b"not whole")
    with pytest.raises(ModelError, match="safetensors"):
        predict_cluster.files_of(open_version(str(copy)))


def test_python_s_memory_depends_on_the_model_and_the_tasks():
    base = predict_cluster.ModelFiles(
        version=Version(address="m", path="m"),
        files={},
        patterns=[],
        key="k",
        decoded_bytes=267_838_720,
        hidden_dim=3072,
        hashes=None,
    )
    needs = predict_cluster.memory_overhead_mib

    def options(**settings):
        return config_module.from_dict({"data": {"spark": settings}}).data.spark

    # One Python process of each framework had 1,659 and 1,395 MiB at its peak.
    assert 1659 < needs(options(executor_cores=1), "torch", base) - 384 < 1.1 * 1659
    assert 1395 < needs(options(executor_cores=1), "tensorflow", base) - 384 < 1.1 * 1395
    one, four = (needs(options(executor_cores=n), "torch", base) - 384 for n in (1, 4))
    assert 4 * one - 4 <= four <= 4 * one
    half = options(executor_cores=4, conf={"spark.task.cpus": "2"})
    assert needs(half, "torch", base) == needs(options(executor_cores=2), "torch", base)
    for key in ("spark.executor.memoryOverhead", "spark.executor.memoryOverheadFactor"):
        assert needs(options(conf={key: "1g"}), "torch", base) is None
