"""One word for a model in every command and key: what a user types, and what it names."""

import json
import os

import pytest
import typer

from howdah import storage
from howdah.cli import app, main
from howdah.config.loader import from_dict
from howdah.config.options.serve import ServeSection
from howdah.errors import ConfigError, ModelError
from howdah.jobs import checks
from howdah.models import version as versions
from howdah.models.base import with_pinned_base
from howdah.models.integrity import files_of
from howdah.models.registry import profile_path
from howdah.models.version import Version, find_version, open_version
from howdah.serving import server
from howdah.serving.registry.publish import publish
from howdah.training.evaluation.profile_writer import make_reference
from howdah.tuning.crossval import folds
from tests.runs.finished_runs import config_of, finished_run, never

FORMS = {
    "zoo": 2, "zoo@1": 1, "zoo/v=1": 1, "{models}/zoo": 2, "{models}/zoo@1": 1,
    "{models}/zoo/v=1": 1, "{base}/run1": None, "{base}/run1/export": None,
}  # fmt: skip
"""{address: number of the version; None: it is not a published one, and of run-1}."""


def make_models(base: str, tiny_model_dir: str) -> str:
    """Two versions of `zoo` below models/, and their run directories."""
    for number, accuracy in ((1, 0.8), (2, 0.9)):
        run = finished_run(
            f"{base}/run{number}", tiny_model_dir, run_id=f"run-{number}", accuracy=accuracy
        )
        publish(config_of(run, f"{base}/models"), never)
    return base


@pytest.fixture(scope="module")
def local(tmp_path_factory, tiny_model_dir) -> str:
    return make_models(str(tmp_path_factory.mktemp("names")), tiny_model_dir)


@pytest.fixture(scope="module")
def memory(tiny_model_dir):
    base = f"memory://names-{os.getpid()}"
    yield make_models(base, tiny_model_dir)
    storage.remove(base, recursive=True)


@pytest.fixture
def hdfs(hdfs_dir, tiny_model_dir) -> str:
    return make_models(hdfs_dir, tiny_model_dir)


@pytest.fixture(params=["local", "memory", pytest.param("hdfs", marks=pytest.mark.hadoop)])
def base(request) -> str:
    """A directory with models/, run1 and run2, on each kind of storage."""
    return request.getfixturevalue(request.param)


class Named(BaseException):
    """Ends a command where it has the model that it was given."""


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    """What a server sets for its whole process, these tests leave as it is."""
    monkeypatch.setattr(server.sys, "setswitchinterval", lambda seconds: None)
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture
def stop(monkeypatch):
    """Each look-up that finds a model ends what asked for it."""
    look_up = versions._at

    def stopped(place, address):
        version = look_up(place, address)
        if version is not None:
            raise Named(version)

    monkeypatch.setattr(versions, "_at", stopped)


def command(*words):
    """A command of the CLI, with the address where {} is."""

    def use(address, models):
        argv = [word.format(address) for word in words]
        argv += ["--set", f"publish.directory={models}"]
        COMMANDS.main(argv, standalone_mode=False)

    return use


def config_with(models, **model):
    return from_dict({"publish": {"directory": models}, "model": model})


COMMANDS = typer.main.get_command(app)
ENTRIES = {
    "serve": lambda address, models: server.serve(
        address, ServeSection(port=0), publish_directory=models, say=print
    ),
    "serve --on ray": command("serve", "--on", "ray", "--model", "{}"),
    "serve --on ray --and": command("serve", "--on", "ray", "--model", "{}", "--and", "{}"),
    "serve --on yarn": command("serve", "--on", "yarn", "--model", "{}"),
    "model register": command(
        "model", "register", "--model", "{}", "--set", "tracking.mlflow.uri=sqlite:///none.db"
    ),
    "score": command(
        "score", "--model", "{}", "--source", "d.a", "--output", "d.b", "--partition", "ds=1"
    ),
    "predict": command("predict", "--model", "{}", "--source", "a.csv", "--output", "b.csv"),
    "predict --stdin": command("predict", "--model", "{}", "--stdin"),
    "predict --master": command(
        "predict", "--model", "{}", "--source", "a.csv", "--output", "b", "--master", "local[1]"
    ),
    "drift --source": command("drift", "--model", "{}", "--source", "a.csv"),
    "drift --table": command("drift", "--model", "{}", "--table", "d.t", "--partition", "ds=1"),
    "drift --make-reference": lambda address, models: make_reference(config_with(models), address),
    "evaluate": command("evaluate", "--model", "{}"),
    "model threshold": command("model", "threshold", "--model", "{}", "--reject-below", "0.5"),
    "model lineage": command("model", "lineage", "--model", "{}"),
    "model.base": lambda address, models: with_pinned_base(config_with(models, base=address)),
    "model.init_from": lambda address, models: with_pinned_base(
        config_with(models, init_from=address)
    ),
    "the check before a job": lambda address, models: checks.begins(
        config_with(models, init_from=address)
    ),
    "crossval": lambda address, models: folds._check(
        config_with(models, base=address), baseline=False
    ),
}  # fmt: skip
"""{command or key that takes a model: what is called with (address, publish.directory)}."""
UNCHECKED = {"model.base", "model.init_from", "crossval"}
"""Entries that leave what names no model as it is: model.base may be a name of the hub, and
model.init_from is refused by the check before a job."""


@pytest.mark.parametrize("entry", ENTRIES)
def test_each_command_and_key_takes_each_form_of_address(base, stop, monkeypatch, tmp_path, entry):
    monkeypatch.chdir(tmp_path)
    for form, number in FORMS.items():
        if "://" in base and not form.startswith("{"):
            continue  # a name is of the grammar, not of the storage
        address = form.format(base=base, models=f"{base}/models")
        with pytest.raises(Named) as caught:
            ENTRIES[entry](address, f"{base}/models")
        [version] = caught.value.args
        assert (version.address, version.number) == (address, number)
        place = "run1/export" if number is None else f"models/zoo/v={number}"
        assert version.path == f"{base}/{place}"
        assert version.run_id == f"run-{number or 1}"
        assert version.follows == (number == 2)


@pytest.mark.parametrize("entry", ENTRIES)
def test_each_command_refuses_a_version_that_there_is_not(local, monkeypatch, tmp_path, entry):
    monkeypatch.chdir(tmp_path)
    for form in ("zoo@7", "{models}/zoo/v=7"):
        with pytest.raises(ModelError, match="the model has no version 7") as caught:
            ENTRIES[entry](form.format(models=f"{local}/models"), f"{local}/models")
        assert caught.value.expected == "one of 1, 2"


@pytest.mark.parametrize("entry", sorted(set(ENTRIES) - UNCHECKED))
def test_each_command_lists_the_models_where_it_has_none(local, monkeypatch, tmp_path, entry):
    monkeypatch.chdir(tmp_path)
    for address in ("zo@1", f"{local}/none"):
        with pytest.raises(ModelError, match="there is no such model") as caught:
            ENTRIES[entry](address, f"{local}/models")
        assert address in caught.value.where
        assert "zoo (v=1, 2)" in caught.value.got
        assert "NAME@3 or NAME/v=3" in caught.value.expected


def test_what_a_version_says_of_itself(local, monkeypatch):
    monkeypatch.chdir(local)
    version = open_version("zoo", "models")
    assert version.path == "models/zoo/v=2" and version.root == f"{local}/models/zoo"
    assert version.as_dict() == {
        "name": "zoo", "version": 2, "path": f"{local}/models/zoo/v=2", "run_id": "run-2",
    }  # fmt: skip
    for same in ("models/zoo", "models/zoo/", "./models/zoo/"):
        assert open_version(same, "nowhere").number == 2
    assert version == open_version("models/zoo", "nowhere")
    assert not open_version("models/zoo/v=2/", "nowhere").follows
    assert version.labels == ("cat", "dog") and version.title == "zoo v=2"
    assert version.weights == version.info["weights_sha256"] and version.decision is None
    export = open_version("run1", "models")
    assert (export.name, export.path) == ("run1", "run1/export")
    assert export.root == f"{local}/run1"
    assert open_version(f"file://{local}/models/zoo").as_dict() == version.as_dict()
    for unknown in ("", "../zoo", "nowhere/zoo"):
        with pytest.raises(ModelError, match="no such model") as caught:
            open_version(unknown, "models")
        assert "zoo (v=1, 2)" in caught.value.got


def test_a_path_that_is_a_model_comes_before_a_name(local, monkeypatch):
    monkeypatch.chdir(f"{local}/run1/export")
    os.symlink(f"{local}/run1", "zoo")
    try:
        assert find_version("zoo", f"{local}/models").path == "zoo/export"
        assert find_version("zoo").path == "zoo/export"
    finally:
        os.unlink("zoo")
    assert find_version("zoo") is None
    assert find_version("distilbert-base-uncased", f"{local}/models") is None


def test_a_directory_called_like_a_version_is_an_export(local, tmp_path, tiny_model_dir):
    """Such as a copy: nothing was published beside it."""
    os.symlink(f"{local}/models/zoo/v=1", tmp_path / "v=5")
    version = open_version(str(tmp_path / "v=5"))
    assert (version.number, version.root) == (None, version.path)


@pytest.mark.parametrize(
    ("folder", "address", "follows"),
    [
        ("models/zoo", ".", True), ("models/zoo", "v=1", False), ("models/zoo", "./v=1", False),
        ("models/zoo/v=1", ".", False), ("models/zoo/v=1", "..", True),
        ("models/zoo/v=1", "../v=1", False),
    ],
)  # fmt: skip
def test_from_inside_a_model_it_is_the_same_version(local, monkeypatch, folder, address, follows):
    """Whose files are compared with its manifest, and never changed."""
    monkeypatch.chdir(f"{local}/{folder}")
    version = open_version(address)
    number = 2 if follows else 1
    assert (version.name, version.number, version.follows) == ("zoo", number, follows)
    assert (version.path, version.root) == (f"{local}/models/zoo/v={number}", f"{local}/models/zoo")
    assert files_of(version.path)
    profile = f"{local}/models/zoo/profiles/v={number}.json"
    assert profile_path(version.path, "profile.json") == profile


def test_a_base_model_is_an_address_too_and_has_no_labels(tiny_model_dir):
    version = open_version(tiny_model_dir)
    assert isinstance(version, Version) and version.info == {} and version.run_id is None
    with pytest.raises(ModelError, match="has no labels"):
        assert version.labels


def test_folds_refuse_a_published_base(local):
    with pytest.raises(ConfigError, match="was trained on rows"):
        folds._check(config_with(f"{local}/models", base="zoo@1"), baseline=False)


def howdah(capsys, monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["howdah", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr()


@pytest.mark.parametrize("address", ["zoo", "zoo@1", "zoo/v=1"])
def test_predict_and_lineage_take_the_name_without_a_configuration(
    local, monkeypatch, capsys, address
):
    """The README's spellings work in the directory in which the model was published."""
    monkeypatch.chdir(local)
    number = 2 if address == "zoo" else 1
    code, output = howdah(capsys, monkeypatch, "model", "lineage", "--model", address, "--json")
    assert code == 0, output.err
    assert json.loads(output.out)["model"]["version"] == number
    with open("texts.csv", "w", newline="") as file:
        file.write("id,text\r\n1,a small dog\r\n")
    code, output = howdah(
        capsys, monkeypatch, "predict", "--model", address, "--source", "texts.csv",
        "--output", f"out-{address.replace('/', '-')}.jsonl", "--framework", "onnx",
    )  # fmt: skip
    assert code == 0, output.err
    with open(f"out-{address.replace('/', '-')}.jsonl") as file:
        assert json.loads(file.readline())["run_id"] == f"run-{number}"
    os.remove(f"out-{address.replace('/', '-')}.jsonl")


@pytest.mark.parametrize("more", [[], ["--config", "run.yaml"]])
def test_lineage_is_of_one_thing(local, monkeypatch, capsys, more):
    monkeypatch.chdir(local)
    arguments = ["model", "lineage", "--model", "zoo", "--dataset", "datasets/zoo", *more]
    code, output = howdah(capsys, monkeypatch, *arguments)
    assert code == 2 and "--dataset, --model" in output.err
