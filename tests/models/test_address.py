"""One word for a published model in every command: what a user types, and what it names."""

import json
import os

import pytest

from howdah.cli import main
from howdah.errors import ModelError
from howdah.models import variants
from howdah.models.registry import address
from howdah.serving.registry.publish import publish
from tests.runs.finished_runs import config_of, finished_run, never


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny_model_dir):
    """Two versions of `zoo` below models/, and a run directory."""
    root = tmp_path_factory.mktemp("names")
    for number, accuracy in ((1, 0.8), (2, 0.9)):
        run = finished_run(
            str(root / f"run{number}"), tiny_model_dir, run_id=f"run-{number}", accuracy=accuracy
        )
        publish(config_of(run, str(root / "models")), never)
    return root


@pytest.mark.parametrize(
    ("given", "version"),
    [("zoo", 2), ("zoo@1", 1), ("zoo/v=1", 1), ("models/zoo", 2), ("models/zoo@1", 1),
     ("models/zoo/v=2", 2), ("models/zoo/", 2), ("{root}/models/zoo@1", 1),
     ("file://{root}/models/zoo", 2)],
)  # fmt: skip
def test_each_form_of_a_published_models_name(place, monkeypatch, given, version):
    monkeypatch.chdir(place)
    found = variants.find(given.format(root=place), "models")
    assert (found.name, found.version) == ("zoo", version)


def test_runs_and_exports_are_models_too(place, monkeypatch):
    monkeypatch.chdir(place)
    for given in ("run1", "run1/export", f"{place}/run1"):
        assert variants.find(given, "models").run_id == "run-1"


@pytest.mark.parametrize("given", ["zo", "zoo@7", "", "nowhere/zoo", "../zoo"])
def test_a_name_of_nothing_lists_what_is_there(place, monkeypatch, given):
    monkeypatch.chdir(place)
    with pytest.raises(ModelError) as caught:
        address(given, "models")
    said = f"{caught.value.expected} {caught.value.got}"
    assert "zoo (v=1, 2)" in said or "1, 2" in said


def howdah(capsys, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["howdah", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr()


@pytest.mark.parametrize("given", ["zoo", "zoo@1", "zoo/v=1"])
def test_predict_and_lineage_take_the_name_without_a_configuration(
    place, monkeypatch, capsys, given
):
    """The README's spellings work in the directory in which the model was published."""
    monkeypatch.chdir(place)
    number = 2 if given == "zoo" else 1
    code, said = howdah(capsys, monkeypatch, "lineage", "--model", given, "--json")
    assert code == 0, said.err
    assert json.loads(said.out)["model"]["version"] == number
    with open("texts.csv", "w", newline="") as file:
        file.write("id,text\r\n1,a small dog\r\n")
    code, said = howdah(
        capsys, monkeypatch, "predict", "--model", given, "--source", "texts.csv",
        "--output", f"out-{given.replace('/', '-')}.jsonl", "--framework", "onnx",
    )  # fmt: skip
    assert code == 0, said.err
    with open(f"out-{given.replace('/', '-')}.jsonl") as file:
        assert json.loads(file.readline())["run_id"] == f"run-{number}"
    os.remove(f"out-{given.replace('/', '-')}.jsonl")
