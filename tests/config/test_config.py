"""The run configuration: every error at once, nearest key named, overrides, round trip, help."""

import pytest
import yaml

from howdah import storage
from howdah.config import loader
from howdah.config.types import parse_bytes
from howdah.errors import ConfigError, NotFound, UsageError


def load_text(tmp_path, text: str, overrides=()):
    path = str(tmp_path / "run.yaml")
    storage.write_whole(path, text.encode())
    return loader.load(path, overrides)


def problems(tmp_path, text: str) -> dict[str, object]:
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, text)
    return {problem.where: problem for problem in caught.value.problems}


def test_every_problem_at_once_with_the_nearest_key(tmp_path):
    found = problems(
        tmp_path,
        """
training: {learning_rat: 5e-5, global_batch_size: many}
model: {lerning_rate: 1}
data: {shard_bytes: 64 MB, max_length: 4}
traning: {}
""",
    )
    assert set(found) == {
        "training.learning_rat", "training.global_batch_size", "model.lerning_rate",
        "data.shard_bytes", "data.max_length", "traning",
    }  # fmt: skip
    assert found["training.learning_rat"].remedy == "did you mean training.learning_rate?"
    assert found["model.lerning_rate"].remedy == "did you mean training.learning_rate?"
    assert found["traning"].remedy == "did you mean training?"
    assert "MiB" in found["data.shard_bytes"].what
    assert found["training.global_batch_size"].got == "'many'"


def test_a_value_of_no_fitting_type_is_one_problem(tmp_path):
    found = problems(tmp_path, "data: {labels: 3}")
    assert list(found) == ["data.labels"]
    assert "list" in found["data.labels"].expected and "dict" in found["data.labels"].expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("training: {gradient_checkpointing: true}", "torch only"),
        ("training: {comm: torch}", "works with training.framework torch only"),
        ("training: {parallel: {shard: optimizer}}", "works with training.framework torch only"),
        (
            "training: {framework: torch, parallel: {shard: optimizer}}\njob: {min_workers: 1}",
            "not for elastic jobs",
        ),
        (
            "training: {framework: torch, parallel: {shard: full}}\njob: {min_workers: 1}",
            "not for elastic jobs",
        ),
        (
            "training: {framework: torch, parallel: {shard: full, tensor: 2}}",
            "not built together with training.parallel.shard full",
        ),
        (
            "training: {framework: torch, parallel: {pipeline: 2, shard: optimizer}}",
            "not built together with training.parallel.shard optimizer",
        ),
        (
            "data: {kind: image}\ntraining: {framework: torch, parallel: {tensor: 2}}",
            "for images choose training.parallel.shard",
        ),
        (
            "training: {framework: torch, parallel: {pipeline: 2, tensor: 2}}",
            "not built together with training.parallel.pipeline 2",
        ),
        (
            "training: {framework: torch, parallel: {pipeline: 2}}\nmodel: {freeze_layers: 1}",
            "not built for frozen layers",
        ),
        (
            "training: {framework: torch, parallel: {pipeline: 2}}\njob: {min_workers: 1}",
            "not for elastic jobs",
        ),
        ("training: {parallel: {tensor: 2}}", "works with training.framework torch only"),
        ("training: {framework: torch, parallel: {shard: both}}", "not what the key takes"),
        ("training: {per_device_max_tokens: 128}\ndata: {max_length: 256}", "must hold one row"),
        ("data: {split: {validation: 0.6, test: 0.5}}", "below 1"),
        ("data: {dedup: {bands: 7}}", "divisible"),
        ("checkpoint: {keep: 1}", "not what the key takes"),
        ("run: {name: 'a b'}", "not what the key takes"),
    ],
)
def test_refused_combinations(tmp_path, text, what):
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, text)
    assert what in str(caught.value)
    assert caught.value.exit_code == 2


def test_scientific_numbers_are_numbers(tmp_path):
    loaded = load_text(tmp_path, "training: {learning_rate: 3e-5, adam_epsilon: 1E-6}")
    assert loaded.training.learning_rate == 3e-5
    assert loaded.training.adam_epsilon == 1e-6


def test_duplicate_key_and_bad_yaml_name_the_line(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, "training:\n  seed: 1\n  seed: 2\n")
    assert "twice" in caught.value.got and "line 3" in caught.value.where
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, "training: {seed: [}")
    assert "line 1" in caught.value.where


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words"])
def test_not_a_mapping(tmp_path, text):
    with pytest.raises(ConfigError, match="not a mapping"):
        load_text(tmp_path, text)


def test_empty_file_takes_the_defaults_and_missing_file_is_not_found(tmp_path):
    assert load_text(tmp_path, "") == loader.Config()
    with pytest.raises(NotFound):
        loader.load(str(tmp_path / "none.yaml"))


def test_overrides(tmp_path):
    loaded = load_text(
        tmp_path,
        "training: {seed: 1}",
        ["training.seed=2", "data.columns.text=[title, body]", "data.shard_bytes=1 MiB"],
    )
    assert loaded.training.seed == 2
    assert loaded.data.columns.text == ["title", "body"]
    assert loaded.data.shard_bytes == 2**20
    for bad in ("training.seed", "=3", "training.seed.deep=1"):
        with pytest.raises(UsageError):
            load_text(tmp_path, "training: {seed: 1}", [bad])


def test_dump_reads_back_the_same():
    changed = loader.load(None, ["data.labels={'1': World}", "training.class_weights=balanced"])
    assert loader.from_dict(yaml.safe_load(loader.dump_yaml(changed))) == changed


def test_every_key_has_help_and_a_type():
    for key, field in loader.keys():  # noqa: SIM118 - a function, not a mapping
        assert field.description, key
        [*_, item] = [i for i in loader.explain(key) if i["key"] == key]
        assert item["type"] and "Annotated" not in item["type"], item


def test_explain_names_the_nearest():
    seeds = ["data.split.seed", "training.seed", "tune.seed"]
    assert [i["key"] for i in loader.explain("seed")] == seeds
    with pytest.raises(UsageError) as caught:
        loader.explain("learning_rat")
    assert "training.learning_rate" in caught.value.remedy


def test_starter_is_a_valid_configuration(tmp_path):
    assert load_text(tmp_path, loader.starter_yaml()) == loader.Config()


@pytest.mark.parametrize(
    ("text", "size"), [("64 MiB", 64 * 2**20), ("1.5GiB", 3 * 2**29), ("10", 10), (7, 7)]
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


# ------------------------------------------------------------------------ what must fit together
@pytest.mark.parametrize("key", ["workers", "max_workers"])
def test_more_workers_than_rows_of_a_global_batch_are_refused(key):
    job = {"min_workers": 1, key: 8}
    with pytest.raises(ConfigError) as caught:
        loader.from_dict({"training": {"global_batch_size": 4}, "job": job})
    assert f"job.{key} (8) must not exceed training.global_batch_size (4)" in str(caught.value)
    loader.from_dict({"training": {"global_batch_size": 8}, "job": job})


def test_a_batch_of_one_row_needs_no_section_of_a_job():
    alone = loader.from_dict({"training": {"global_batch_size": 1}})
    assert loader.from_dict(yaml.safe_load(loader.dump_yaml(alone))) == alone
    with pytest.raises(ConfigError, match="1 problem"):
        loader.from_dict({"training": {"global_batch_size": 1}, "yarn": {"queue": "research"}})


def test_a_key_that_yaml_takes_for_true_is_a_key(tmp_path):
    text = "job: {on: local}\ndata: {labels: {yes: Good, no: Bad}}\n"
    held = load_text(tmp_path, text)
    assert (held.job.on, held.data.labels) == ("local", {"yes": "Good", "no": "Bad"})
    assert load_text(tmp_path, loader.dump_yaml(held)) == held
    with pytest.raises(ConfigError, match="given twice"):
        load_text(tmp_path, "job: {on: local, 'on': ray}")


def test_gloo_times_out_before_a_rank_counts_as_hanging():
    assert loader.from_dict({}).job.gloo_timeout == 30.0
    for hang, gloo in ((5, 5.0), (12, 10.0), (90, 60.0)):
        assert loader.from_dict({"job": {"hang_seconds": hang}}).job.gloo_timeout == gloo
    assert loader.from_dict({"job": {"gloo_timeout_seconds": 45}}).job.gloo_timeout == 45.0
    with pytest.raises(ConfigError) as caught:
        loader.from_dict({"job": {"gloo_timeout_seconds": 120}})
    text = str(caught.value)
    assert "job.gloo_timeout_seconds (120) must not exceed job.hang_seconds (45)" in text


def test_a_worker_has_one_gpu_or_none():
    for count in (0, 1):
        assert loader.from_dict({"job": {"worker": {"gpus": count}}}).job.worker.gpus == count
    with pytest.raises(ConfigError) as caught:
        loader.from_dict({"job": {"worker": {"gpus": 2}}})
    text = str(caught.value)
    assert "job.worker.gpus" in text
    assert "one GPU" in text
    assert "job.workers" in text
