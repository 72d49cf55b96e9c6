"""Publishing: versions, the pointer, rolling back; at once, again, killed anywhere, damaged."""

from __future__ import annotations

import functools
import json
import os
import threading
import time

import pytest

from howdah import storage
from howdah.errors import CheckFailed, DataError, ModelError, UsageError
from howdah.models import integrity
from howdah.models.registry import Published
from howdah.models.version import find_version, open_version
from howdah.serving.registry import publish as publishing
from howdah.serving.registry.publish import publish, republish, roll_back
from tests.runs.finished_runs import config_of, finished_run, never


@pytest.fixture(
    params=[
        "plain",
        "memory",
        # In every run what versions need of S3: tests/storage/test_contract.py, test_commit.py
        pytest.param("s3", marks=pytest.mark.full),
        pytest.param("hdfs", marks=pytest.mark.hadoop),
        pytest.param("webhdfs", marks=[pytest.mark.hadoop, pytest.mark.full]),
    ]
)
def base(request, tmp_path):
    """An empty directory on each kind of storage."""
    if request.param == "plain":
        yield str(tmp_path)
    elif request.param == "memory":
        path = f"memory://{tmp_path.name}-{os.getpid()}"
        yield path
        storage.remove(path, recursive=True)
    elif request.param == "s3":
        yield f"{request.getfixturevalue('s3_bucket')}/{tmp_path.name}"
    else:
        path = request.getfixturevalue("hdfs_dir")
        if request.param == "webhdfs":
            cluster = request.getfixturevalue("cluster")
            path = cluster.webhdfs_url + path.removeprefix(cluster.hdfs_url)
        yield path


def resolve(root: str) -> str:
    """Path of the version that is current."""
    return open_version(root).path


def whole(version: str) -> dict:
    """A version's manifest, its files being what it says."""
    manifest = storage.read_json(f"{version}/manifest.json")
    for name, file in manifest["files"].items():
        assert integrity.digest(f"{version}/{name}") == file
    return manifest


def test_a_run_whose_version_is_damaged_gets_another_one(tmp_path, tiny_model_dir):
    run = finished_run(str(tmp_path / "run"), tiny_model_dir, run_id="a")
    config = config_of(run, str(tmp_path / "models"))
    root, lines = f"{tmp_path}/models/zoo", []
    assert publish(config, never)["version"] == 1
    never_again = publish(config, never)
    assert never_again["changed"] is False
    [name] = [n for n in whole(f"{root}/v=1")["files"] if n.endswith(".safetensors")]
    os.truncate(f"{root}/v=1/{name}", 100)
    with pytest.raises(ModelError, match="damaged"):
        republish(config, 1)
    made = publish(config, never, progress=lines.append)
    assert (made["version"], made["changed"], made["current"]) == (2, True, 2)
    assert "version 1 is damaged" in lines[0]
    assert whole(resolve(root))["run_id"] == whole(f"{root}/v=2")["run_id"]
    assert publish(config, never)["changed"] is False


def test_versions_pointer_and_rolling_back(base, tiny_model_dir):
    models, root = f"{base}/models", f"{base}/models/zoo"
    assert find_version(root) is None
    configs = {}
    for number, run_id in enumerate(["a", "b", "c"], 1):
        run = finished_run(f"{base}/run-{run_id}", tiny_model_dir, run_id=run_id)
        configs[run_id] = config_of(run, models, gate={"minimum": {"accuracy": 0.5}})
        made = publish(configs[run_id], never)
        assert (made["version"], made["changed"], made["current"]) == (number, True, number)
        assert made["previous"] == (number - 1 or None)
        assert whole(f"{root}/v={number}")["run_id"] == run_id
        assert resolve(root) == f"{root}/v={number}"
    pointer = storage.read_json(f"{root}/current.json")
    assert pointer["run_id"] == "c"
    assert pointer["gate"]["passed"] is True
    assert pointer["metrics"]["test"]["accuracy"] == 0.9
    assert pointer["by"]
    # The same run again, also when it is not the current one, changes nothing.
    before = storage.read_bytes(f"{root}/current.json")
    for run_id, number in (("c", 3), ("a", 1)):
        again = publish(configs[run_id], never)
        assert (again["version"], again["changed"], again["current"]) == (number, False, 3)
    assert storage.read_bytes(f"{root}/current.json") == before
    # Back, and further back; then there is nothing more.
    assert roll_back(configs["a"])["version"] == 2
    assert roll_back(configs["a"])["version"] == 1
    assert storage.read_json(f"{root}/current.json")["action"] == "rollback"
    with pytest.raises(UsageError, match="no version to go back to"):
        roll_back(configs["a"])
    assert publish(configs["c"], never)["changed"] is False  # a retry does not undo the roll-back
    assert resolve(root) == f"{root}/v=1"
    assert republish(configs["a"], 3)["changed"] is True
    assert republish(configs["a"], 3)["changed"] is False
    assert storage.read_json(f"{root}/current.json")["action"] == "publish"  # not back, but on
    assert resolve(root) == f"{root}/v=3"
    assert {e.name for e in storage.list_dir(root)} == {
        "v=1", "v=2", "v=3", "current.json", "history", "claims",
    }  # fmt: skip


def test_a_version_has_every_format_of_the_export(tmp_path, tiny_model_dir):
    run = finished_run(str(tmp_path / "run"), tiny_model_dir, run_id="a")
    export = tmp_path / "run" / "export"
    (export / "saved_model" / "variables").mkdir(parents=True)
    (export / "saved_model" / "saved_model.pb").write_bytes(b"graph")
    (export / "saved_model" / "variables" / "variables.index").write_bytes(b"index")
    made = publish(config_of(run, str(tmp_path / "models")), never)
    version = tmp_path / "models" / "zoo" / "v=1"
    files = storage.read_json(f"{made['path']}/manifest.json")["files"]
    assert {"model.onnx", "model.safetensors", "saved_model/variables/variables.index"} <= set(
        files
    )
    assert (version / "saved_model" / "saved_model.pb").read_bytes() == b"graph"
    (version / "saved_model" / "variables" / "variables.index").write_bytes(b"other")
    other = finished_run(str(tmp_path / "other"), tiny_model_dir, run_id="b")
    config = config_of(other, str(tmp_path / "models"))
    publish(config, never)
    with pytest.raises(ModelError):
        roll_back(config)
    (export / "thesis").mkdir()
    with pytest.raises(ModelError, match="does not belong there"):
        publishing._copied(str(export), str(tmp_path / "copy"), print)


def test_the_gate_is_asked_before_anything_is_written(tmp_path, tiny_model_dir):
    run = finished_run(str(tmp_path / "run"), tiny_model_dir, run_id="a", accuracy=0.4)
    config = config_of(run, str(tmp_path / "models"), gate={"minimum": {"accuracy": 0.5}})
    with pytest.raises(CheckFailed):
        publish(config, never)
    assert not (tmp_path / "models").exists()


def test_a_model_is_judged_by_the_one_that_is_current_when_it_is_published(
    tmp_path, tiny_model_dir, monkeypatch
):
    """Another run is published while this one is copied: it is the one to beat."""
    models = str(tmp_path / "models")
    good, better = (
        finished_run(str(tmp_path / name), tiny_model_dir, run_id=name, accuracy=accuracy)
        for name, accuracy in (("good", 0.8), ("better", 0.9))
    )
    gate = {"better_than_published": True}
    copied = publishing._copied

    def meanwhile(*arguments):
        monkeypatch.setattr(publishing, "_copied", copied)
        publish(config_of(better, models, gate=gate), never)
        return copied(*arguments)

    monkeypatch.setattr(publishing, "_copied", meanwhile)
    with pytest.raises(CheckFailed):
        publish(config_of(good, models, gate=gate), never)
    assert storage.read_json(f"{models}/zoo/current.json")["run_id"] == "better"


# ------------------------------------------------------------------------------------- at once
def in_child(work) -> int:
    """A forked process that calls `work`; its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - a child must not go on as pytest
            os.write(2, repr(error).encode())
            os._exit(1)
    return pid


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_publishers_at_once_never_share_a_number_and_readers_see_whole_models(
    tmp_path, tiny_model_dir
):
    models, root = str(tmp_path / "models"), str(tmp_path / "models" / "zoo")
    runs = [finished_run(str(tmp_path / f"r{n}"), tiny_model_dir, run_id=f"r{n}") for n in range(5)]
    publish(config_of(runs[0], models), never)
    seen, over, wrong = set(), threading.Event(), []

    def read() -> None:
        while not over.is_set():
            try:
                seen.add(whole(resolve(root))["run_id"])
            except Exception as error:  # noqa: BLE001 - the test reports it
                wrong.append(error)
                return

    reader = threading.Thread(target=read)
    children = [
        in_child(lambda run=run: publish(config_of(run, models), never)) for run in runs[1:]
    ]
    reader.start()
    assert [ended(pid) for pid in children] == [0] * 4
    over.set()
    reader.join()
    assert not wrong
    assert seen
    place = Published(root)
    assert place.versions() == [1, 2, 3, 4, 5]
    assert {place.version(n)["run_id"] for n in place.versions()} == {f"r{n}" for n in range(5)}
    assert place.current() == place.newest()[1]
    assert sorted(place.current()["order"]) == [1, 2, 3, 4, 5]


def test_one_run_published_at_once_becomes_one_version(tmp_path, tiny_model_dir):
    models = str(tmp_path / "models")
    run = finished_run(str(tmp_path / "run"), tiny_model_dir, run_id="a")
    children = [in_child(lambda: publish(config_of(run, models), never)) for _ in range(4)]
    assert [ended(pid) for pid in children] == [0] * 4
    place = Published(f"{models}/zoo")
    assert len(place.versions()) == 1
    assert place.current()["order"] == place.versions()


# --------------------------------------------------------------------------------------- killed
CHANGES = ("write_stream", "write_whole", "create_exclusive", "rename_dir", "remove")


def dying_at(number: int, monkeypatch_target, work) -> None:
    """Call `work` and end without a word before the change of storage with this number."""
    count = 0

    def counted(original):
        def call(*arguments, **options):
            nonlocal count
            count += 1
            if count == number:
                os._exit(9)
            return original(*arguments, **options)

        return call

    for name in CHANGES:
        setattr(monkeypatch_target, name, counted(getattr(monkeypatch_target, name)))
    work()


def test_a_publisher_killed_anywhere_leaves_whole_versions_and_the_next_completes_it(
    tmp_path, tiny_model_dir
):
    first, second = (
        finished_run(str(tmp_path / name), tiny_model_dir, run_id=name) for name in ("a", "b")
    )
    killed = 0
    while True:
        models = str(tmp_path / f"models-{killed}")
        root = f"{models}/zoo"
        publish(config_of(first, models), never)
        config = config_of(second, models)
        storage.remove(f"{second}/gate.json")
        work = functools.partial(publish, config, never)
        pid = in_child(functools.partial(dying_at, killed + 1, storage, work))
        code = ended(pid)
        place = Published(root)
        assert whole(resolve(root))["run_id"] in ("a", "b")
        for number in place.numbers():  # every directory that looks like a version is one
            whole(place.path_of(number))
        if code == 0:
            break
        assert code == 9
        made = publish(config, never)
        assert whole(resolve(root))["run_id"] == "b"
        assert made["current"] == made["version"]
        runs = [place.version(number)["run_id"] for number in place.versions()]
        assert runs == ["a", "b"]
        assert place.current()["order"][-1] == made["version"]
        killed += 1
    assert killed > 10  # each file, manifest, claim, rename, history, pointer


def test_staging_of_a_killed_publisher_is_swept_after_a_day(tmp_path, tiny_model_dir):
    models = tmp_path / "models"
    for token, age in (("0" * 12, 25 * 3600), ("1" * 12, 3600)):
        staging = models / "zoo" / f"staging-{token}"
        staging.mkdir(parents=True)
        (staging / "config.json").write_text("{}")
        then = time.time() - age
        os.utime(staging / "config.json", (then, then))
    run = finished_run(str(tmp_path / "run"), tiny_model_dir, run_id="a")
    publish(config_of(run, str(models)), never)
    left = {e.name for e in storage.list_dir(str(models / "zoo")) if "staging" in e.name}
    assert left == {f"staging-{'1' * 12}"}


# -------------------------------------------------------------------------------------- damaged
def test_damaged_weights_are_not_published(tmp_path, tiny_model_dir):
    run = finished_run(str(tmp_path / "run"), tiny_model_dir, run_id="a")
    weights = tmp_path / "run" / "export" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    models = str(tmp_path / "models")
    with pytest.raises(ModelError, match=r"do not match its howdah\.json"):
        publish(config_of(run, models), never)
    assert Published(f"{models}/zoo").numbers() == []
    assert not list((tmp_path / "models" / "zoo").glob("staging-*"))


def test_a_copy_that_reads_back_otherwise_is_not_published(tmp_path, tiny_model_dir, monkeypatch):
    run = finished_run(str(tmp_path / "run"), tiny_model_dir, run_id="a")
    models = str(tmp_path / "models")
    send = publishing._send

    def lossy(source, target):
        sent = send(source, target)
        if target.endswith("vocab.txt"):
            os.truncate(target, 10)
        return sent

    monkeypatch.setattr(publishing, "_send", lossy)
    with pytest.raises(ModelError, match="differs from the file"):
        publish(config_of(run, models), never)
    assert Published(f"{models}/zoo").numbers() == []


def test_a_damaged_version_is_not_made_current(tmp_path, tiny_model_dir):
    models = str(tmp_path / "models")
    for run_id in ("a", "b"):
        run = finished_run(str(tmp_path / run_id), tiny_model_dir, run_id=run_id)
        publish(config_of(run, models), never)
    (tmp_path / "models/zoo/v=1/config.json").write_text("{}")
    with pytest.raises(ModelError, match="damaged"):
        roll_back(config_of(run, models))
    assert Published(f"{models}/zoo").current()["version"] == 2


def test_a_pointer_without_a_version_is_refused(tmp_path, tiny_model_dir):
    run = finished_run(str(tmp_path / "run"), tiny_model_dir, run_id="a")
    config = config_of(run, str(tmp_path / "models"))
    publish(config, never)
    pointer = tmp_path / "models/zoo/current.json"
    pointer.write_text(json.dumps({"version": "../../x"}))
    with pytest.raises(ModelError, match="does not name a version"):
        resolve(str(tmp_path / "models/zoo"))
    pointer.write_text("{")
    with pytest.raises(ModelError, match="not JSON") as caught:
        resolve(str(tmp_path / "models/zoo"))
    assert "howdah publish" in caught.value.remedy
    assert publish(config, never)["current"] == 1  # written anew
    assert resolve(str(tmp_path / "models/zoo")) == str(tmp_path / "models/zoo/v=1")


@pytest.mark.parametrize(
    ("name", "body", "field"),
    [
        ("v=1/manifest.json", 5, ""),
        ("v=1/manifest.json", {"files": 5}, "files"),
        ("v=1/manifest.json", {"metrics": {"test": 5}}, "metrics.test"),
        ("history/000001.json", [], ""),
        ("history/000001.json", {"order": 5}, "order"),
        ("history/000001.json", {"version": "x"}, "version"),
        ("current.json", {"metrics": 5}, "metrics"),
    ],
)
def test_a_damaged_record_of_a_model_is_named(tmp_path, tiny_model_dir, name, body, field):
    """The error names the file and the field."""
    models = str(tmp_path / "models")
    runs = [finished_run(str(tmp_path / n), tiny_model_dir, run_id=n) for n in ("a", "b")]
    publish(config_of(runs[0], models), never)
    path = f"{models}/zoo/{name}"
    if isinstance(body, dict) and storage.exists(path):
        body = storage.read_json(path) | body
    storage.write_whole(path, json.dumps(body).encode())
    gate = {"better_than_published": True}
    with pytest.raises((DataError, ModelError)) as caught:
        publish(config_of(runs[1], models, gate=gate), never)
    assert caught.value.where == (f"{path}: {field}" if field else path)
    assert caught.value.got and caught.value.remedy


def test_a_manifest_without_its_fields_is_found_but_not_published_again(tmp_path, tiny_model_dir):
    models = str(tmp_path / "models")
    run = finished_run(str(tmp_path / "run"), tiny_model_dir, run_id="a")
    publish(config_of(run, models), never)
    path = f"{models}/zoo/v=1/manifest.json"
    storage.write_whole(path, json.dumps(storage.read_json(path) | {"files": None}).encode())
    assert Published(f"{models}/zoo").version(1)["run_id"]
    with pytest.raises(DataError, match="is malformed") as caught:
        republish(config_of(run, models), 1)
    assert caught.value.where == f"{path}: files"
