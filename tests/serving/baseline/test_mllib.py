"""The baseline by Spark: the same rows and about the same figures as scikit-learn's."""

from __future__ import annotations

import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.errors import ConfigError, DataError
from howdah.serving.baseline.run import measure_baseline
from tests.fixtures.dataset import build_dataset

pytestmark = pytest.mark.spark


def config(dataset, directory, **baseline):
    return from_dict(
        {
            "data": {"dataset": dataset.path, "spark": {"master": "local[2]"}},
            "run": {"directory": directory},
            "baseline": {"max_features": 4096, **baseline},
        }
    )


@pytest.fixture
def dataset(tmp_path, tiny_model_dir):
    rows = {"train": 300, "validation": 40, "test": 80}
    return build_dataset(
        str(tmp_path / "v=7"), model_dir=tiny_model_dir, rows=rows, seed=7, compression="gzip"
    )


@pytest.mark.full
def test_spark_finds_what_scikit_learn_finds(spark, dataset, tmp_path):
    directory = str(tmp_path / "run")
    given = config(dataset, directory)
    ours = measure_baseline(given, progress=lambda line: None)["metrics"]["test"]
    found = measure_baseline(given, spark=True, progress=lambda line: None)
    theirs = found["metrics"]["test"]
    assert theirs["rows"] == ours["rows"] == 80
    # Another IDF, hashed n-grams, and c chosen by other rows: five rows of 80 apart were seen.
    assert theirs["accuracy"] > 0.75
    assert abs(theirs["accuracy"] - ours["accuracy"]) <= 0.125
    assert set(found["tried"]) == {"1", "10"} and "CrossValidator" in found["chosen_by"]
    assert storage.read_json(f"{directory}/baseline.json")["by"] == "spark"


def test_spark_reads_whole_shards_or_none(spark, dataset, tmp_path):
    given = config(dataset, str(tmp_path / "run"), c=1.0, ngrams=1)
    entry = dataset.manifest.splits["train"][0]
    path = dataset.shard_path(entry)
    data = bytearray(storage.read_bytes(path))
    data[len(data) // 2] ^= 1
    storage.write_whole(path, bytes(data))
    with pytest.raises(DataError, match="truncated or altered") as caught:
        measure_baseline(given, spark=True, progress=lambda line: None)
    assert entry.name in caught.value.where
    given = config(dataset, str(tmp_path / "run"), max_bytes="1 MiB")
    with pytest.raises(ConfigError, match="Spark's driver"):
        measure_baseline(given, spark=True, progress=lambda line: None)
