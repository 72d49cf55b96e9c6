"""A published model as the base of a run: one version of it, for all attempts."""

import json
import os
import subprocess
import sys

import pytest

from howdah import storage
from howdah.config.loader import from_dict
from howdah.errors import ModelError
from howdah.models.base import with_pinned_base
from howdah.serving.registry.publish import publish, republish
from tests import ROOT
from tests.fixtures.dataset import build_dataset
from tests.runs.finished_runs import config_of, finished_run, never
from tests.runs.training_runs import SETTINGS, _nested


@pytest.fixture
def models(tmp_path, tiny_model_dir) -> str:
    """models/zoo with two versions, of which the first is current."""
    models = str(tmp_path / "models")
    for run_id in ("a", "b"):
        run = finished_run(str(tmp_path / run_id), tiny_model_dir, run_id=run_id)
        publish(config_of(run, models), never)
    republish(config_of(run, models), 1)
    return models


def config(directory, base: str, **model) -> object:
    return from_dict({"run": {"directory": str(directory)}, "model": {"base": base, **model}})


def test_a_base_is_the_version_that_is_current_when_the_run_begins(models, tmp_path):
    run = tmp_path / "run"
    name = f"{models}/zoo"
    begun = with_pinned_base(config(run, name, init_from=name))
    assert (begun.model.base, begun.model.init_from) == (f"{name}/v=1", f"{name}/v=1")
    assert with_pinned_base(config(run, f"{name}@2")).model.base == f"{name}/v=2"
    for other in ("distilbert-base-uncased", f"{name}/v=2", str(tmp_path / "none")):
        same = config(run, other)
        assert with_pinned_base(same) is same
    with pytest.raises(ModelError) as caught:
        with_pinned_base(config(run, f"{name}@7"))
    assert "one of 1, 2" in str(caught.value.expected)
    # A run that goes on keeps what it has begun with; one that begins anew does not.
    run.mkdir()
    record = {"base": {"source": f"{name}/v=1", "hash": "h", "init_from": f"{name}/v=1"}}
    storage.write_whole(str(run / "run.json"), json.dumps(record).encode())
    publish(config_of(str(tmp_path / "b"), models), never)
    republish(config_of(str(tmp_path / "b"), models), 2)
    on = with_pinned_base(config(run, name, init_from=name))
    assert (on.model.base, on.model.init_from) == (f"{name}/v=1", f"{name}/v=1")
    anew = config(run, name).model_copy(
        update={"checkpoint": config(run, name).checkpoint.model_copy(update={"resume": "never"})}
    )
    assert with_pinned_base(anew).model.base == f"{name}/v=2"
    assert with_pinned_base(config(tmp_path / "other", name)).model.base == f"{name}/v=2"
    # Another model than the run began with: that is refused by its checkpoints, not hidden here.
    record["base"]["source"] = f"{models}/cats/v=1"
    storage.write_whole(str(run / "run.json"), json.dumps(record).encode())
    assert with_pinned_base(config(run, name)).model.base == f"{name}/v=2"


@pytest.mark.full
@pytest.mark.timeout(600)
def test_plan_and_train_take_it_and_go_on_with_it_after_another_is_published(
    models, tmp_path, tiny_model_dir
):
    dataset = build_dataset(
        str(tmp_path / "data" / "v=1"),
        model_dir=tiny_model_dir,
        rows={"train": 48, "validation": 12},
    )
    values = SETTINGS | {
        "run.name": "zoo", "run.directory": str(tmp_path / "run"), "data.dataset": dataset.path,
        "model.base": "models/zoo", "training.framework": "torch", "training.max_steps": 4,
    }  # fmt: skip
    config_file = tmp_path / "given.yaml"
    config_file.write_text(json.dumps(_nested(values)))

    def howdah(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "howdah.cli", *words, "-c", str(config_file)], cwd=tmp_path,
            capture_output=True, text=True, timeout=250,
            env={**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stderr

    assert "models/zoo/v=1" in howdah("plan")
    howdah("train", "--set", "checkpoint.resume=auto")
    run = storage.read_json(str(tmp_path / "run" / "run.json"))
    assert run["base"]["source"] == "models/zoo/v=1"
    assert run["attempts"][0]["command"].startswith("howdah train --set checkpoint.resume=auto -c ")
    assert run["attempts"][0]["usage"]["of"] == "howdah train and its rank"
    republish(config_of(str(tmp_path / "b"), models), 2)
    howdah("train", "--set", "training.max_steps=6")
    run = storage.read_json(str(tmp_path / "run" / "run.json"))
    assert (run["base"]["source"], run["steps"]) == ("models/zoo/v=1", 6)
    assert len(run["hours"]["attempts"]) == 2 and run["hours"]["complete"]
