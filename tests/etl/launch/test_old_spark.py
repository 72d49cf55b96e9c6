"""The oldest Sparks that the ETL supports, as a cluster's own (`data.spark.home`): all of it."""

import os
import subprocess

import pytest

from howdah.config import loader as config_module
from howdah.data.manifest import load_dataset
from howdah.etl.launch import submit
from tests import ROOT
from tests.etl.test_pipeline import sentences, write_csv

pytestmark = pytest.mark.spark


def _config(place, base, **spark):
    texts = sentences(60)
    rows = [(text, "ab"[n % 2]) for n, text in enumerate([*texts, texts[0], "", texts[1] + "!"])]
    source = write_csv(place / "rows.csv", rows)
    data = {"source": source, "dataset": str(place / "dataset"), "num_shards": 2, "spark": spark}
    return config_module.from_dict({"data": data, "model": {"base": base}})


@pytest.mark.full
@pytest.mark.timeout(900)  # the first time the environment is fetched
def test_a_clusters_own_spark_makes_the_same_dataset(
    old_spark_home, spark, tmp_path, tiny_model_dir
):
    old, new = (tmp_path / name for name in ("old", "new"))
    for place in (old, new):
        place.mkdir()
    lines = []
    config = _config(old, tiny_model_dir, home=old_spark_home, master="local[2]")
    first = submit.run(config, progress=lines.append)
    assert any(line.startswith("committed ") for line in lines)  # the other process's own words
    again = submit.run(config, progress=lines.append)
    assert again.unchanged and again.path == first.path
    second = submit.run(_config(new, tiny_model_dir), progress=lines.append)
    splits = [load_dataset(result.path).manifest.splits for result in (first, second)]
    crcs = [{name: [s.crc32c for s in part] for name, part in split.items()} for split in splits]
    assert crcs[0] == crcs[1]
    assert first.as_dict()["rows"] == second.as_dict()["rows"]


@pytest.mark.full  # the errors are in every run on our own Spark
def test_an_error_under_a_clusters_spark_comes_as_itself(old_spark_home, tmp_path, tiny_model_dir):
    from howdah.errors import DataError

    source = write_csv(tmp_path / "rows.csv", [("one label", "a"), ("is not enough", "a")])
    config = config_module.from_dict(
        {
            "data": {
                "source": source,
                "dataset": str(tmp_path / "dataset"),
                "spark": {"home": old_spark_home, "master": "local[1]"},
            },
            "model": {"base": tiny_model_dir},
        }
    )
    with pytest.raises(DataError, match="at least two labels"):
        submit.run(config, progress=lambda line: None)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_the_etl_tests_pass_on_an_old_spark(old_spark):
    tests = sorted(str(path) for path in (ROOT / "tests" / "etl").rglob("test_*.py"))
    cluster = ("old_spark.py", "yarn.py", "hdfs.py", "hive.py", "secure.py")
    tests = [t for t in tests if not t.endswith(cluster)]
    # That environment has neither TensorFlow, which reads shards, nor the packages of the corpus.
    others = "not tensorflow and not projects_list"
    marks = "not hadoop and not full"  # nor what starts a cluster's daemons
    argv = [old_spark, "-m", "pytest", "-x", "-m", marks, "-k", others, *tests]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK_", "PYSPARK_"))}
    env["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
