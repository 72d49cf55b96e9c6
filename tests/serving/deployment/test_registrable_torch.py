"""Models that MLflow could not load are refused before anything is registered."""

import json

import mlflow
import pytest

from howdah import storage
from howdah.errors import ModelError, UsageError
from howdah.models.export.export import with_decision
from howdah.models.version import open_version
from howdah.serving.deployment import following, mlflow_registry, references
from howdah.serving.deployment.pyfunc_model import HowdahModel
from howdah.serving.registry.publish import publish
from tests.runs.finished_runs import config_of, finished_run, never


@pytest.fixture(autouse=True)
def in_a_directory_of_its_own(tmp_path, monkeypatch):
    """MLflow makes ./mlruns."""
    monkeypatch.chdir(tmp_path)


def changed(export: str, name: str, **changes) -> None:
    path = f"{export}/{name}"
    storage.write_whole(path, json.dumps(storage.read_json(path) | changes).encode())


def names_in(uri: str) -> list[str]:
    return [one.name for one in mlflow.MlflowClient(uri, uri).search_registered_models()]


CHANGES = {
    "multi_label": ("config.json", {"problem_type": "multi_label_classification"}),
    "regression": ("config.json", {"problem_type": "regression"}),
    "pairs": ("howdah.json", {"pairs": True}),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_it_is_refused_with_the_error_of_loading(kind, tmp_path, tiny_model_dir):
    run = finished_run(str(tmp_path / "run"), tiny_model_dir, run_id="run-1")
    name, changes = CHANGES[kind]
    changed(f"{run}/export", name, **changes)
    uri = f"sqlite:///{tmp_path}/registry.db"
    with pytest.raises(UsageError) as refused:
        mlflow_registry.register(open_version(run), uri, name="zoo", experiment="howdah")
    assert names_in(uri) == []

    class Context:
        artifacts, model_config = {"export": f"{run}/export"}, {}

    with pytest.raises(UsageError) as at_loading:
        HowdahModel().load_context(Context)
    assert vars(refused.value) == vars(at_loading.value)


def test_images_are_refused(tmp_path, tiny_model_dir):
    version = open_version(finished_run(str(tmp_path / "run"), tiny_model_dir, run_id="run-1"))
    vars(version)["kind"] = "image"
    with pytest.raises(UsageError, match="classifies images, not texts"):
        mlflow_registry.register(version, "sqlite:///none.db", name="zoo", experiment="howdah")


def test_two_decisions_on_the_same_weights_are_two_versions(tmp_path, tiny_model_dir):
    run = finished_run(str(tmp_path / "run"), tiny_model_dir, run_id="run-1")
    uri = f"sqlite:///{tmp_path}/registry.db"

    def registered() -> tuple[int, bool]:
        made = mlflow_registry.register(
            open_version(run), uri, name="zoo", experiment="howdah", mode="reference"
        )
        return made["version"], made["changed"]

    assert registered() == (1, True)
    references.write(str(tmp_path), open_version(run))
    assert references.resolve(str(tmp_path)) == f"{run}/export"
    with_decision(f"{run}/export", {"reject_below": 0.7})
    assert registered() == (2, True) and registered() == (2, False)
    tags = mlflow.MlflowClient(uri, uri).get_model_version("zoo", "2").tags
    assert tags["howdah.decision"] == open_version(run).decision
    with pytest.raises(ModelError, match="is another model") as refused:
        references.resolve(str(tmp_path))
    assert refused.value.expected.endswith("of run run-1, no decision")
    assert refused.value.got.endswith(f"of run run-1, decision {open_version(run).decision}")


def test_it_is_published_and_champion_stays_where_it_is(tmp_path, tiny_model_dir):
    uri = f"sqlite:///{tmp_path}/registry.db"

    def after_publishing(number: int, **changes) -> tuple[dict, list[str]]:
        run = finished_run(str(tmp_path / f"{number}"), tiny_model_dir, run_id=f"run-{number}")
        changed(f"{run}/export", "howdah.json", **changes)
        config = config_of(
            run, str(tmp_path / "models"), tracking={"mlflow": {"uri": uri}},
            publish={"directory": str(tmp_path / "models"), "mlflow": {"mode": "reference"}},
        )  # fmt: skip
        publish(config, never)
        lines = []
        return following.after_publish(config, lines.append), lines

    assert after_publishing(1)[0]["champion"] == 1
    made, lines = after_publishing(2, pairs=True)
    assert made["state"] == "behind" and "pairs of texts" in made["warning"]
    assert lines[-1].endswith("; use `howdah predict`")
    client = mlflow.MlflowClient(uri, uri)
    assert int(client.get_registered_model("zoo").aliases["champion"]) == 1
    # A later version is registered, whatever was published in between.
    made, _ = after_publishing(3)
    assert (made["champion"], made["added"]) == (2, [3])
