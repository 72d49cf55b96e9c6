"""The search space: what is refused before any trial starts, and how trials are configured."""

from __future__ import annotations

import pytest

from howdah.config import loader
from howdah.config.model import Config
from howdah.errors import ConfigError, DataError, HowdahError
from howdah.policy import rules as policies
from howdah.policy.check import Judge
from howdah.tuning import space
from tests.fixtures.dataset import build_dataset
from tests.runs.studies import SPACE, configuration


@pytest.fixture
def study(tmp_path, tiny_dataset, tiny_model_dir):
    def made(tune: dict | None = None, **settings):
        sections = configuration(
            tmp_path, dataset=tiny_dataset.path, base=tiny_model_dir, tune=tune or {}, **settings
        )
        return loader.from_dict(sections)

    return made


def problems_of(config, **options) -> str:
    with pytest.raises(ConfigError) as caught:
        space.check(config, np=1, **options)
    return "\n".join(str(problem) for problem in caught.value.problems)


# --------------------------------------------------------------------------- the section alone
@pytest.mark.parametrize(
    ("dimension", "message"),
    [
        ({"low": 1}, "low and high"),
        ({"low": 2, "high": 1}, "below high"),
        ({"low": 0, "high": 1, "log": True}, "above 0"),
        ({"low": 1, "high": 2, "choices": [1]}, "not both"),
        ({"choices": []}, "empty"),
        ({"choices": [1, 1]}, "twice"),
        ({"low": 1, "high": 2, "steps": 1}, "known: low, high, log, step, choices"),
        ({"low": 1, "high": 2, "log": True, "step": 1}, "exclude"),
        ({"low": 1, "high": float("inf")}, "finite"),
        ([1, 2], "give {low, high}"),
    ],
)
def test_a_dimension_is_a_range_or_choices(dimension, message):
    with pytest.raises(ConfigError) as caught:
        loader.from_dict({"tune": {"space": {"training.seed": dimension}}})
    (problem,) = caught.value.problems
    assert message in problem.what
    assert problem.where.startswith("tune.space.training.seed")


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"metric": "acuracy"}, "did you mean accuracy?"),
        ({"storage": "postgresql://u:hunter2@db/x"}, "tune.storage_url_file"),
        ({"storage": "a", "storage_url_file": "b"}, "not both"),
        ({"storage": "sqlite://x.db"}, "sqlite:///FILE"),
    ],
)
def test_wrong_sections_are_refused_without_their_passwords(tune, message):
    with pytest.raises(ConfigError) as caught:
        loader.from_dict({"tune": tune})
    assert message in str(caught.value)
    assert "hunter2" not in str(caught.value)


# --------------------------------------------------------------------------- keys and values
def test_all_problems_at_once(study):
    problems = problems_of(
        study(
            {
                "space": {
                    "training.learning_rat": {"low": 1, "high": 2},
                    "run.directory": {"choices": ["a", "b"]},
                    "model.base": {"choices": ["a", "b"]},
                    "data.max_length": {"low": 32, "high": 64},
                    "checkpoint.keep": {"low": 2, "high": 3},
                    "training.global_batch_size": {"low": 8.5, "high": 16},
                    "training.shard_cache_bytes": {"low": 1, "high": 2},
                    "training.gradient_checkpointing": {"low": 0, "high": 1},
                },
            },
            **{"checkpoint.resume": "never", "evaluation.splits": ["test"]},
        )
    )
    for text in (
        "did you mean training.learning_rate?",
        "run.directory may not be tuned",
        "model.base may not be tuned: it names something",
        "data.max_length may not be tuned: trials use datasets",
        "checkpoint.keep may not be tuned: it does not change the trained model",
        "takes integers",
        "training.shard_cache_bytes may not be tuned",
        "this key does not take numbers",
        "checkpoint.resume",
        "evaluation.splits",
    ):
        assert text in problems, text


def test_both_ends_and_each_choice_pass_the_loader(study):
    problems = problems_of(
        study(
            {
                "space": {
                    "training.learning_rate": {"low": 0.1, "high": 2.0},
                    "training.weight_decay": {"low": -1.0, "high": 0.1},
                    "training.lr_scheduler_type": {"choices": ["linear", "square"]},
                }
            }
        )
    )
    assert "a trial with training.learning_rate=2.0" in problems
    assert "a trial with training.weight_decay=-1.0" in problems
    assert "a trial with training.lr_scheduler_type=square" in problems
    assert "=0.1" not in problems


def test_combinations_pass_the_loader_too(study):
    both = {
        "training.framework": {"choices": ["torch", "tensorflow"]},
        "training.gradient_checkpointing": {"choices": [False, True]},
    }
    problems = problems_of(study({"space": both}))
    assert "training.framework=tensorflow, training.gradient_checkpointing=True" in problems


def test_a_batch_smaller_than_the_world_is_refused(study):
    config = study({"space": {"training.global_batch_size": {"low": 2, "high": 8}}})
    assert space.check(config, np=2)
    with pytest.raises(ConfigError) as caught:
        space.check(config, np=4)
    assert "smaller than the number of ranks" in str(caught.value)


def test_an_empty_space_and_a_shared_checkpoint_directory_are_refused(study):
    problems = problems_of(study({"space": {}}, **{"checkpoint.directory": "/tmp/x"}))
    assert "search space is empty" in problems and "checkpoint.directory" in problems


def test_a_remote_study_needs_a_storage_that_workers_share(study):
    problems = problems_of(study(**{"run.directory": "memory://studies/x"}))
    assert "tune.storage" in problems


def test_what_policies_refuse_of_a_trial_is_refused_before_it_starts(study):
    def refused(config):
        if config.training.lr_scheduler_type == "cosine":
            yield HowdahError("no cosine here")

    assert "no cosine here" in problems_of(study(), refused=refused)


def test_a_study_of_an_administrators_defaults_is_judged_by_its_values_alone(study):
    base = study()
    rules = {
        "roots": [],
        "keys": ["training.learning_rate"],
        "defaults": base.model_dump(mode="json"),
    }
    judge = Judge(policies.from_dict(rules), env={})
    assert "training.lr_scheduler_type is refused" in problems_of(base, refused=judge.config)
    other = study({"space": {"training.learning_rate": SPACE["training.learning_rate"]}})
    rules["defaults"] = other.model_dump(mode="json")
    judge = Judge(policies.from_dict(rules), env={})
    assert space.check(other, np=1, refused=judge.config)


# --------------------------------------------------------------------------- datasets
def test_datasets_are_pinned_to_the_version_that_is_there(study, tmp_path, tiny_model_dir):
    first = build_dataset(str(tmp_path / "data" / "v=1"), model_dir=tiny_model_dir)
    other = build_dataset(str(tmp_path / "other" / "v=1"), model_dir=tiny_model_dir, seed=1)
    roots = [str(tmp_path / "data"), str(tmp_path / "other")]
    config = study({"space": {"data.dataset": {"choices": roots}}})
    pinned = space.check(config, np=1)
    assert pinned == dict(zip(roots, [first.path, other.path], strict=True))
    trial = space.trial_config(
        config, {"data.dataset": roots[1]}, number=3, directory="/s/3", datasets=pinned
    )
    assert trial.data.dataset == other.path


def test_a_dataset_that_is_not_there_or_has_no_validation_is_a_data_error(
    study, tmp_path, tiny_model_dir
):
    config = study({"space": {"data.dataset": {"choices": [str(tmp_path / "none")]}}})
    with pytest.raises(DataError):
        space.check(config, np=1)
    whole = build_dataset(
        str(tmp_path / "v=0"), model_dir=tiny_model_dir, rows={"train": 20, "test": 5}
    )
    with pytest.raises(DataError) as caught:
        space.check(study(**{"data.dataset": whole.path}), np=1)
    assert "validation has no rows" in caught.value.what


# --------------------------------------------------------------------------- trials
def test_distributions_follow_the_keys_types(study):
    distributions = space.distributions(
        study(
            {
                "space": {
                    **SPACE,
                    "training.global_batch_size": {"low": 8, "high": 30, "step": 8},
                    "training.weight_decay": {"low": 0, "high": 0.1},
                    "training.max_steps": {"low": 1.0, "high": 10.0},
                    "model.dropout": {"low": 0, "high": 0.25, "step": 0.1},
                }
            }
        ).tune
    )
    kinds = {key: type(one).__name__ for key, one in distributions.items()}
    assert kinds == {
        "training.learning_rate": "FloatDistribution",
        "training.lr_scheduler_type": "CategoricalDistribution",
        "training.global_batch_size": "IntDistribution",
        "training.weight_decay": "FloatDistribution",
        "training.max_steps": "IntDistribution",
        "model.dropout": "FloatDistribution",
    }
    assert distributions["training.learning_rate"].log
    assert distributions["training.global_batch_size"].high == 24
    assert distributions["model.dropout"].high == pytest.approx(0.2)


def test_a_trial_differs_from_the_study_by_its_values_and_places_alone(study):
    config = study()
    params = {"training.learning_rate": 0.003, "training.lr_scheduler_type": "cosine"}
    trial = space.trial_config(
        config, params, number=7, directory="/s/trials/7",
        datasets={config.data.dataset: config.data.dataset},
    )  # fmt: skip
    assert (trial.run.directory, trial.run.name) == ("/s/trials/7", "tiny-7")
    assert trial.training == config.training.model_copy(
        update={"learning_rate": 0.003, "lr_scheduler_type": "cosine"}
    )
    assert (trial.model, trial.data, trial.evaluation) == (
        config.model, config.data, config.evaluation,
    )  # fmt: skip
    assert trial.tune == Config().tune


def test_the_direction_is_the_metrics_own(study):
    assert space.objective_of(study()).direction == "minimize"
    assert space.objective_of(study({"metric": "accuracy"})).direction == "maximize"
