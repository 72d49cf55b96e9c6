"""A folder of images on a real HDFS: read where it lies, its dataset beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from howdah import storage
from howdah.config.loader import dump_yaml, from_dict
from howdah.data.manifest import load_dataset
from howdah.data.splits.shards import ShardSet
from tests import ROOT
from tests.support.models.images import write_processor, write_shapes

pytestmark = [pytest.mark.hadoop, pytest.mark.full]
LIMIT = 280  # seconds; detects a hang


def test_a_folder_on_hdfs_has_the_rows_of_the_same_folder_here(hdfs_dir, hadoop_env, tmp_path):
    here = tmp_path / "here"
    write_shapes(str(here), 12)
    (here / "above" / "empty.png").write_bytes(b"")
    base = write_processor(str(tmp_path / "vit"))
    for where, _, names in os.walk(here):
        for name in names:
            path = os.path.join(where, name)
            storage.upload(path, storage.join(hdfs_dir, "images", os.path.relpath(path, here)))
    by_place = {}
    for place, source in (("hdfs", f"{hdfs_dir}/images"), ("here", str(here))):
        dataset = f"{hdfs_dir}/dataset" if place == "hdfs" else str(tmp_path / "dataset")
        config = from_dict(
            {
                "data": {
                    "kind": "image", "source": source, "dataset": dataset,
                    "split": {"validation": 0.0, "test": 0.3},
                    "spark": {"master": "local[2]", "driver_memory": "1g"},
                },
                "model": {"base": base},
                "training": {"framework": "torch"},
            }
        )  # fmt: skip
        path = tmp_path / f"{place}.yaml"
        path.write_text(dump_yaml(config))
        done = subprocess.run(
            [sys.executable, "-m", "howdah.cli", "etl", "--config", str(path), "--json"],
            capture_output=True, text=True, timeout=LIMIT, cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        made = load_dataset(json.loads(done.stdout)["dataset"])
        assert made.manifest.quality["drops"] == {"empty": 1}
        rows = {}
        for split in made.manifest.splits:
            shards = ShardSet(made, split)
            for shard, entry in enumerate(shards.entries):
                for row in range(entry.rows):
                    one = shards.example(shard, row)
                    rows[one.id] = (split, one.label, one.input_ids.tobytes())
        by_place[place] = rows
    assert len(by_place["hdfs"]) == 12 and by_place["hdfs"] == by_place["here"]
