"""What a request must be, which model answers it, and what `howdah serve` refuses at once."""

import json
import socket

import numpy as np
import pytest

from howdah.cli import app, run
from howdah.errors import ModelError, UsageError
from howdah.models.version import open_version
from howdah.serving.compute.refusals import Refusal
from howdah.serving.compute.requests import as_json, parse
from howdah.serving.deployment import mlflow_registry, ray_serve
from howdah.serving.deployment.split import choose, require_comparable
from howdah.serving.prediction.rows import Outputs, Prediction
from tests.runs.finished_runs import LABELS, two_versions

MOST_TEXTS = 32


def test_a_request_has_one_text_or_several_and_a_key():
    one = parse(b'{"text": "caf\xc3\xa9"}', MOST_TEXTS)
    assert (one.texts, one.key, one.is_single) == (("café",), None, True)
    several = parse(json.dumps({"texts": ["a", ""], "key": "user-17"}).encode(), MOST_TEXTS)
    assert (several.texts, several.key, several.is_single) == (("a", ""), "user-17", False)


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "not JSON"),
        (b"{", 400, "not JSON"),
        (b'{"text": "\xff"}', 400, "not JSON"),
        (b"[" * 100_000, 400, "nested too deeply"),
        (b'["a"]', 422, "got:      a list"),
        (b"{}", 422, "neither"),
        (b'{"text": "a", "texts": ["b"]}', 422, "both"),
        (b'{"text": "a", "model": 1}', 422, "'model'"),
        (b'{"texts": []}', 422, "an empty list"),
        (b'{"texts": "a"}', 422, "a string"),
        (b'{"texts": ["a", null]}', 422, r"texts\[1\]"),
        (b'{"text": 3}', 422, "a number"),
        (b'{"text": "\\ud800"}', 422, "not Unicode"),
        (b'{"text": "a", "key": ""}', 422, "key"),
        (b'{"text": "a", "key": 7}', 422, "key"),
        (json.dumps({"texts": ["a"] * (MOST_TEXTS + 1)}).encode(), 413, "too many texts"),
    ],
)
def test_a_wrong_request_is_refused_with_what_is_expected(body, status, words):
    with pytest.raises(Refusal, match=words) as caught:
        parse(body, MOST_TEXTS)
    assert caught.value.status == status
    assert caught.value.expected


def test_an_answer_names_the_label_and_all_scores_or_the_error():
    scores = np.array([0.25, 0.75], np.float32)
    single = Outputs(task="single_label", labels=LABELS)
    answers = as_json([Prediction("0", "dog", scores), Prediction("1", None, None, "bad")], single)
    assert answers == [
        {"label": "dog", "score": 0.75, "scores": {"cat": 0.25, "dog": 0.75}},
        {"label": None, "score": None, "error": "bad"},
    ]


def test_a_key_always_goes_to_one_model_and_keys_are_shared_out():
    keys = [f"user-{number}" for number in range(4000)]
    chosen = [choose(key, 0.1, "zoo") for key in keys]
    assert chosen == [choose(key, 0.1, "zoo") for key in keys]
    assert 0.08 < sum(chosen) / len(chosen) < 0.12
    # A larger share keeps those that had the second model.
    more = [choose(key, 0.5, "zoo") for key in keys]
    assert all(late >= early for early, late in zip(chosen, more, strict=True))
    assert chosen != [choose(key, 0.1, "other") for key in keys]
    assert {choose(None, 0.5, "zoo") for _ in range(200)} == {0, 1}


@pytest.fixture(scope="module")
def models(tmp_path_factory, tiny_model_dir) -> str:
    """A publish.directory with two versions of zoo, the second current; runs beside it."""
    return two_versions(tmp_path_factory.mktemp("models"), tiny_model_dir)


def test_a_model_is_found_by_name_version_or_path(models):
    current = open_version("zoo", models)
    assert (current.title, current.number, current.run_id) == ("zoo v=2", 2, "run-2")
    assert current.path == f"{models}/zoo/v=2" and current.labels == tuple(LABELS)
    assert open_version("zoo/v=1", models).as_dict()["run_id"] == "run-1"
    assert open_version(f"{models}/zoo", "nowhere") == current
    run_directory = models.removesuffix("models") + "run-1"
    export = open_version(run_directory, models)
    assert (export.name, export.number, export.run_id) == (run_directory, None, "run-1")
    for name in ("nothing", "zoo/v=3", ""):
        with pytest.raises(ModelError):
            open_version(name, models)


def test_two_models_need_a_share_and_equal_labels(models):
    one, other = open_version("zoo/v=1", models), open_version("zoo", models)
    assert require_comparable(one, other, 0.1) == 0.1
    for share in (None, 0.0, 1.0, float("nan"), -1.0):
        with pytest.raises(UsageError, match="--share"):
            require_comparable(one, other, share)
    vars(other)["labels"] = ("cat", "cow")
    with pytest.raises(ModelError, match="different labels"):
        require_comparable(one, other, 0.1)
    vars(other)["info"] = {"pairs": True}
    with pytest.raises(ModelError, match="different tasks") as caught:
        require_comparable(one, other, 0.1)
    assert caught.value.expected.startswith("single_label (")
    assert caught.value.got == "single_label of pairs"


def serve(capsys, *words):
    """`howdah serve` in this process, refused: (exit code, its one JSON object)."""
    code = run(lambda: app(["serve", *words, "--json"], standalone_mode=False), as_json=True)
    return code, json.loads(capsys.readouterr().out)


def test_a_server_that_cannot_be_is_refused_before_ray_starts(models, capsys, monkeypatch):
    ours = ["--set", f"publish.directory={models}"]
    ray = ["--on", "ray", *ours]
    monkeypatch.setattr(ray_serve.machine, "cores", lambda: 2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for words, code, what in (
            (["--model", "zoo", "--on", "flask", *ours], 2, "unknown server"),
            (["--model", "none", *ray], 4, "no such model"),
            (["--model", "zoo", "--share", "0.1", *ray], 2, "the share of --and"),
            (["--model", "zoo", "--and", "zoo/v=1", *ray], 2, "needs the share"),
            (["--model", "zoo", "--replicas", "3:1", *ray], 2, "not a number of replicas"),
            (["--model", "zoo", "--replicas", "3", *ray], 2, "more cores"),
            (["--model", "zoo", "--port", str(port), *ray], 2, "cannot listen"),
        ):
            exit_code, answer = serve(capsys, *words)
            assert (exit_code, what in answer["what"]) == (code, True), answer


def test_names_and_aliases_that_mlflow_refuses_are_refused_before_it_starts(models):
    zoo = open_version("zoo", models)
    for changes in ({"name": "a/b"}, {"name": ".."}, {"alias": "latest"}, {"alias": "v3"}):
        settings = {"name": "zoo", "experiment": "howdah", "alias": None, **changes}
        with pytest.raises(UsageError, match="MLflow does not accept this"):
            mlflow_registry.register(zoo, "sqlite:///nowhere.db", **settings)
    foreign = open_version("zoo", models)
    vars(foreign)["info"] = {}
    with pytest.raises(ModelError, match="which run made it"):
        mlflow_registry.register(foreign, "sqlite:///nowhere.db", name="zoo", experiment="howdah")
