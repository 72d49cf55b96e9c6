"""The paths of a configuration: each key that names one says which processes open it."""

from __future__ import annotations

from howdah.config import loader
from howdah.config.loader import from_dict
from howdah.config.types import mark_of
from howdah.jobs.driver.faults import fault_of, shared_paths
from howdah.packaging.cluster_paths import of_ranks, paths_of
from howdah.yarn import spec

_OF_RANKS = {
    "run.directory", "data.dataset", "model.base", "model.init_from", "checkpoint.directory",
    "checkpoint.resume",
}  # fmt: skip
_OF_NODES = {"training.shard_cache_directory", "yarn.python"}


def test_what_ranks_open_follows_from_the_types():
    marks = {name: mark_of(field) for name, field in loader.keys()}  # noqa: SIM118 - a module
    uses = {name: mark.used for name, mark in marks.items() if mark is not None}
    assert {name for name, used in uses.items() if used == "ranks"} == _OF_RANKS
    assert {name for name, used in uses.items() if used == "node"} == _OF_NODES


def test_a_job_knows_the_model_and_the_checkpoint_that_it_begins_from():
    config = from_dict(
        {
            "run": {"directory": "hdfs://a:8020/runs/x"},
            "data": {"dataset": "hdfs://a:8020/data"},
            "model": {"base": "distilbert-base-uncased", "init_from": "hdfs://models/news@3"},
            "checkpoint": {"resume": "hdfs://old/runs/y/checkpoints/step-7"},
            "yarn": {"python": "/opt/python"},
        }
    )
    assert of_ranks(config) == {
        "run.directory": "hdfs://a:8020/runs/x",
        "data.dataset": "hdfs://a:8020/data",
        "model.base": "distilbert-base-uncased",
        "model.init_from": "hdfs://models/news@3",
        "checkpoint.resume": "hdfs://old/runs/y/checkpoints/step-7",
    }
    assert paths_of(config, "node") == {"yarn.python": "/opt/python"}
    assert set(spec.file_systems(of_ranks(config).values())) == {
        "hdfs://a:8020", "hdfs://models", "hdfs://old",
    }  # fmt: skip
    full = {"kinds": ["StorageFull", "StorageError"], "where": "hdfs://models/news@3/x"}
    assert fault_of({"error": "NotFound", **full}, shared_paths(config)) == "job"


def test_auto_is_no_path():
    assert "checkpoint.resume" not in of_ranks(from_dict({}))
