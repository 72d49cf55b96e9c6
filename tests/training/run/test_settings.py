"""Settings of a run's steps, by its attempts."""

from howdah import storage
from howdah.config.data import DataSection
from howdah.config.loader import dump_yaml, from_dict, load
from howdah.models.runs.settings import (
    already_finished,
    described,
    learnt_with,
    settings_at,
    stages,
    unlike,
)
from tests.support.rows.appended import build_appended


def attempt(resumed, lr=None, **more):
    settings = {"settings": {"training.learning_rate": lr, "training.seed": 1}} if lr else {}
    begun = {} if resumed is None else {"resumed_at_step": resumed}
    return {**settings, **begun, **more}


def spans(*attempts):
    return [(one.after, one.settings.get("training.learning_rate")) for one in stages(attempts)]


def test_attempts_with_the_same_settings_are_one_stage():
    assert spans(attempt(0, 1.0), attempt(40, 1.0), attempt(80, 1.0)) == [(0, 1.0)]


def test_other_settings_begin_a_stage_where_the_attempt_resumed():
    assert spans(attempt(0, 1.0), attempt(40, 2.0), attempt(60, 2.0)) == [(0, 1.0), (40, 2.0)]


def test_steps_that_were_given_up_are_not_of_the_weights():
    assert spans(attempt(0, 1.0), attempt(40, 2.0), attempt(20, 3.0)) == [(0, 1.0), (20, 3.0)]
    assert spans(attempt(0, 1.0), attempt(40, 2.0), attempt(0, 3.0)) == [(0, 3.0)]


def test_a_refused_attempt_has_no_steps():
    assert spans(attempt(0, 1.0), attempt(None, 2.0), attempt(30, 1.0)) == [(0, 1.0)]


def test_what_is_shown_are_the_differences_alone():
    described_stages = described([attempt(0, 1.0), attempt(40, 2.0)], upto=50)
    assert described_stages == [
        {"steps": "1 to 40", "settings": {"training.learning_rate": 1.0}},
        {"steps": "41 to 50", "settings": {"training.learning_rate": 2.0}},
    ]
    assert described([attempt(0, 1.0), attempt(40, 2.0)], upto=40) == []
    assert described([attempt(0, 1.0), attempt(40, 2.0)])[1]["steps"] == "from 41"
    assert described([attempt(0), attempt(40, 2.0)]) == []  # an older run's are not known
    assert described([]) == []


def test_the_settings_of_a_step():
    had = [attempt(0, 1.0), attempt(40, 2.0)]
    assert [settings_at(had, step)["training.learning_rate"] for step in (0, 40, 41, None)] == [
        1.0, 1.0, 2.0, 2.0
    ]  # fmt: skip
    assert settings_at([], 7) == {}


def test_keys_that_change_what_is_learnt():
    before = learnt_with(from_dict({}))
    for same in ({"training": {"logging_steps": 3}}, {"run": {"name": "b"}},
                 {"export": {"formats": ["onnx"]}}, {"training": {"comm": "horovod"}},
                 {"serve": {"port": 1234}}, {"tracking": {"tensorboard": False}}):  # fmt: skip
        assert learnt_with(from_dict(same)) == before, same
    for other in ({"training": {"seed": 3}}, {"model": {"dropout": 0.3}},
                  {"training": {"early_stopping": {"patience": 2}}},
                  {"evaluation": {"every_steps": 5}}):  # fmt: skip
        assert learnt_with(from_dict(other)) != before, other


def test_settings_that_a_version_was_not_made_with_are_named(tmp_path, tiny_model_dir):
    version = build_appended(str(tmp_path / "data"), model_dir=tiny_model_dir).manifest
    longest = version.max_length
    assert unlike(DataSection(), version) == []  # a configuration that says nothing of it
    columns = version.source.get("columns") or {}
    assert unlike(DataSection(max_length=longest, columns=columns), version) == []
    other = DataSection(max_length=longest + 1, clean={"html_tags": True})
    cleaned = version.model_copy(update={"cleaning": {"html_tags": False, "whitespace": True}})
    assert unlike(other, cleaned) == [
        f"data.max_length {longest} (the configuration says {longest + 1})",
        "data.clean.html_tags false (the configuration says true)",
    ]


def test_a_step_of_the_run_is_its_path_and_another_value_stays():
    for resume, path in (
        ("step-60", "hdfs://h/runs/a/checkpoints/step-60"), ("auto", "auto"), ("never", "never"),
        ("runs/b/checkpoints/step-60", "runs/b/checkpoints/step-60"),
    ):  # fmt: skip
        config = load(None, ["run.directory=hdfs://h/runs/a", f"checkpoint.resume={resume}"])
        assert config.checkpoint.resume == path


def test_a_finished_run_that_resumed_from_a_step_is_finished_by_any_spelling(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage.make_dirs("runs/a")
    storage.write_whole("runs/a/run.json", b'{"status": "finished", "steps": 60}')
    words = ["training.max_steps=60", "checkpoint.resume=step-30", f"data.dataset={tmp_path}/d"]
    frozen = load(None, [f"run.directory={tmp_path}/runs/a", *words])
    storage.write_whole("runs/a/config.yaml", dump_yaml(frozen).encode())
    again = load(None, ["run.directory=runs/a", *words])
    assert again.checkpoint.resume != frozen.checkpoint.resume
    assert already_finished(again)[0].startswith("this run is finished")
    other = ["run.directory=runs/a", words[0], "checkpoint.resume=step-20", words[2]]
    assert already_finished(load(None, other)) is None
