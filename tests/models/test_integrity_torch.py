"""Every way to open a published version compares its files with its manifest, not the server's."""

import os
import shutil

import pytest

from howdah.errors import ModelError
from howdah.models import integrity
from howdah.models.opened import opened as serve
from howdah.models.opened.opened import open_model
from howdah.models.version import open_version
from howdah.models.weights.pretrained import load_base
from howdah.serving.deployment import references
from howdah.serving.prediction.cluster import files_of
from howdah.serving.prediction.lines import predict_lines
from howdah.serving.registry.publish import publish
from tests.runs.finished_runs import config_of, finished_run, never


@pytest.fixture
def zoo(tmp_path, tiny_model_dir):
    """A published model with versions 1 and 2."""
    for number in (1, 2):
        directory = str(tmp_path / f"run-{number}")
        finished_run(directory, tiny_model_dir, run_id=f"run-{number}")
        publish(config_of(directory, str(tmp_path / "models")), never)
    return tmp_path / "models" / "zoo"


def mixed_up(zoo):
    """Version 2 with the weights of version 1, as a copy by mistake leaves it."""
    shutil.copy(zoo / "v=1" / "model.safetensors", zoo / "v=2" / "model.safetensors")


def test_predict_refuses_the_weights_of_another_version(zoo):
    assert open_model(str(zoo)).run_id == "run-2"
    mixed_up(zoo)
    with pytest.raises(ModelError, match="a published file is damaged") as caught:
        open_model(str(zoo))
    assert caught.value.where.endswith("v=2/model.safetensors")
    with pytest.raises(ModelError, match="damaged"):
        predict_lines(str(zoo), ["the cat\n"], None)


def test_what_mlflow_refers_to_is_compared(zoo, tmp_path):
    variant = open_version("zoo", str(zoo.parent))
    references.write(str(tmp_path), variant)
    mixed_up(zoo)  # howdah.json still says the right thing
    with pytest.raises(ModelError, match="damaged"):
        open_model(references.resolve(str(tmp_path)))


def test_a_model_begun_from_a_published_one_has_its_weights(zoo):
    load_base(str(zoo / "v=2"))
    mixed_up(zoo)
    with pytest.raises(ModelError, match="damaged"):
        load_base(str(zoo / "v=2"))


def test_copies_that_sparks_workers_got_are_compared(zoo, tmp_path):
    location = files_of(open_version(str(zoo))).location(shipped=False)
    copies = tmp_path / "copies"
    shutil.copytree(zoo / "v=2", copies)
    os.unlink(copies / "manifest.json")
    assert open_model(str(copies), files=location.hashes).run_id == "run-2"
    shutil.copy(zoo / "v=1" / "model.safetensors", copies / "model.safetensors")
    with pytest.raises(ModelError, match="damaged"):
        open_model(str(copies), files=location.hashes)


@pytest.mark.parametrize("way", ["replaced", "written"])
def test_a_file_that_changes_while_it_is_opened_is_noticed(zoo, monkeypatch, way):
    """Between the comparison and the opening another file may come to lie under the name."""
    weights = zoo / "v=2" / "model.safetensors"
    made = serve.forward_of

    def changing(*args, **kwargs):
        if way == "replaced":
            shutil.copy(zoo / "v=1" / "model.safetensors", zoo / "other")
            os.replace(zoo / "other", weights)
        else:
            with open(weights, "r+b") as file:
                file.seek(-1, os.SEEK_END)
                file.write(b"x")
        return made(*args, **kwargs)

    monkeypatch.setattr(serve, "forward_of", changing)
    with pytest.raises(ModelError, match="changed while it was opened"):
        open_model(str(zoo))


def test_other_directories_have_no_manifest_to_compare_with(tmp_path, tiny_model_dir):
    run = finished_run(str(tmp_path / "run"), tiny_model_dir, run_id="run-1")
    assert integrity.files_of(f"{run}/export") is None
    shutil.copytree(f"{run}/export", tmp_path / "v=1")  # a user's own name
    assert integrity.files_of(str(tmp_path / "v=1")) is None
    assert open_model(str(tmp_path / "v=1")).run_id == "run-1"
