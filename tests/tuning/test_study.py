"""The study in its storage: made once, joined, compared; values of trials; no training here."""

from __future__ import annotations

import os

import pytest

from howdah.config import loader
from howdah.errors import ClusterError, ConfigError, DataError, NotFound, PermissionDenied
from howdah.tuning import space
from howdah.tuning import study as studies
from tests.runs.studies import SPACE, configuration

DATASETS = {"given": "given/v=1"}


@pytest.fixture
def config(tmp_path, tiny_dataset, tiny_model_dir):
    def made(**settings):
        sections = configuration(
            tmp_path, dataset=tiny_dataset.path, base=tiny_model_dir, **settings
        )
        return loader.from_dict(sections)

    return made


@pytest.fixture(params=["journal", "sqlite"])
def stored(request, tmp_path):
    """tune.storage of each kind that needs no server."""
    if request.param == "sqlite":
        return {"storage": f"sqlite:///{tmp_path}/db/study.db"}
    return {}


def numbers(study, most=100):
    return [trial.number for trial in studies.open_trials(study, most)]


def test_a_study_is_made_once_and_joined(config, stored):
    with pytest.raises(ConfigError) as caught:
        studies.join(config(tune=stored))
    assert "does not exist" in caught.value.what
    if stored:  # the file of a process that is about to make the tables
        path = stored["storage"].removeprefix("sqlite:///")
        os.makedirs(os.path.dirname(path))
        open(path, "w").close()
        with pytest.raises(ConfigError, match="does not exist"):
            studies.join(config(tune=stored))
    made = studies.create(config(tune=stored), DATASETS)
    assert numbers(made) == [0, 1]
    joined = studies.join(config(tune=stored))
    assert numbers(joined) == [0, 1]
    assert studies.datasets_of(joined) == DATASETS
    assert joined.direction.name == "MINIMIZE"
    again = studies.create(config(tune=stored | {"trials": 5}), {"another": "another"})
    assert numbers(again) == [0, 1, 2, 3, 4]
    assert numbers(again, most=3) == [0, 1, 2]
    assert studies.datasets_of(again) == DATASETS


def test_a_study_is_the_same_however_its_directory_is_spelt(config, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    studies.create(config(run={"directory": "../study"}), DATASETS)
    assert numbers(studies.join(config(run={"directory": f"{tmp_path}/study/"}))) == [0, 1]


@pytest.mark.parametrize("opened", [studies.join, lambda config: studies.create(config, DATASETS)])
def test_a_journal_that_a_full_disk_cut_short_goes_on(config, tmp_path, opened):
    studies.create(config(), DATASETS)
    journal = tmp_path / "study" / "study.journal"
    with open(journal, "ab") as file:
        file.write(b'{"op_code": 4, "worker_id": "x", "stu')
    study = opened(config())
    study.enqueue_trial({})
    assert numbers(studies.join(config())) == [0, 1, 2]
    assert journal.read_bytes().endswith(b"\n")


@pytest.mark.parametrize("body", [b"[]\n", b"\xff\xfe\n", b'{"op_code": 99}\n'])
def test_a_damaged_journal_is_named(config, tmp_path, body):
    studies.create(config(), DATASETS)
    journal = tmp_path / "study" / "study.journal"
    journal.write_bytes(body + journal.read_bytes())
    for opened in (studies.join, lambda config: studies.create(config, DATASETS)):
        with pytest.raises(DataError, match="journal is damaged") as caught:
            opened(config())
        assert caught.value.where == str(journal)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"tune": {"space": {"training.seed": {"low": 1, "high": 3}}}}, "tune.space"),
        ({"tune": {"metric": "accuracy"}}, "tune.metric"),
        ({"training.global_batch_size": 16}, "key of data, model, training"),
    ],
)
def test_a_study_of_another_configuration_is_refused(config, changed, message):
    studies.create(config(), DATASETS)
    for enter in (studies.join, lambda config: studies.create(config, DATASETS)):
        with pytest.raises(ConfigError) as caught:
            enter(config(**changed))
        assert message in str(caught.value)


def test_values_are_drawn_once_and_do_not_depend_on_the_worker(config, stored):
    settings = config(tune=stored | {"sampler": "random"})
    distributions = space.distributions(settings.tune)

    def values(study, number):
        frozen = study.get_trials()[number]
        trial = studies.begin(study, frozen, settings.tune)
        return {key: space.suggest(trial, key, one) for key, one in distributions.items()}

    one = studies.create(settings, DATASETS)
    two = studies.join(settings)
    first, second = values(one, 0), values(two, 1)
    assert first != second and set(first) == set(SPACE)
    assert values(two, 0) == first  # another worker goes on with the trial
    again = studies.create(config(tune={"sampler": "random"}, **{"run.name": "again"}), DATASETS)
    assert values(again, 0) == first  # the same seed, another study


def test_a_finished_trial_is_not_begun_again(config, stored):
    settings = config(tune=stored)
    study = studies.create(settings, DATASETS)
    frozen = study.get_trials()[0]
    trial = studies.begin(study, frozen, settings.tune)
    trial.report(0.5, 1)
    assert studies.reported(trial) == {1}
    studies.end_without_value(study, trial, "PRUNED")
    studies.end_without_value(study, trial, "FAIL")  # too late: it changes nothing
    assert studies.begin(studies.join(settings), frozen, settings.tune) is None
    assert numbers(study) == [1]
    assert study.get_trials()[0].state.name == "PRUNED"


@pytest.mark.parametrize("pruner", ["asha", "hyperband", "median", "none"])
@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_each_pruner_and_sampler_is_made(config, pruner, sampler):
    settings = config(tune={"pruner": pruner, "sampler": sampler})
    study = studies.create(settings, DATASETS)
    trial = studies.begin(study, study.get_trials()[0], settings.tune)
    trial.report(1.0, 1)
    assert trial.should_prune() is False


def evaluated(config, losses: list[float], evaluations: int, **tune) -> list[int | None]:
    """The evaluation after which each trial of a study was pruned, None: it was finished. A trial's
    loss is the same at each of its evaluations; trials run one after the other."""
    settings = config(
        tune={"trials": len(losses), **tune}, **{"run.name": "brackets", "run.directory": "study"}
    )
    study, last_evaluations = studies.create(settings, DATASETS), []
    for frozen, loss in zip(study.get_trials(), losses, strict=True):
        trial = studies.begin(study, frozen, settings.tune)
        for number in range(1, evaluations + 1):
            trial.report(loss, number)
            if trial.should_prune():
                studies.end_without_value(study, trial, "PRUNED")
                last_evaluations.append(number)
                break
        else:
            study.tell(trial, loss)
            last_evaluations.append(None)
    states = [trial.state.name for trial in study.get_trials()]
    assert states == ["COMPLETE" if number is None else "PRUNED" for number in last_evaluations]
    return last_evaluations


def test_hyperband_prunes_what_is_worse_than_the_others_of_its_bracket(
    config, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)  # a trial's bracket follows from the study's name and its number
    monkeypatch.setattr(studies, "_MOST_EVALUATIONS", 9)
    hyperband = {"pruner": "hyperband"}
    losses = [0.1 + 0.01 * number for number in range(12)]
    # Three brackets judge for the first time after 1, 3 and 9 evaluations. The first trial of each
    # has no other to fall behind.
    last_evaluations = evaluated(config, losses, 9, **hyperband)
    assert last_evaluations == [None, None, 1, 1, 3, 1, 3, None, 3, 9, 1, 1]
    better_each_time = evaluated(config, losses[::-1], 9, **hyperband, storage="other.journal")
    assert better_each_time == [None] * 12


def test_the_median_pruner_prunes_what_is_worse_than_half_of_the_finished(
    config, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    losses = [0.9, 0.1, 0.3, 0.5, 0.2]
    monkeypatch.setattr(studies, "_STARTUP_TRIALS", 3)
    monkeypatch.setattr(studies, "_LEAST_EVALUATIONS", 2)
    last_evaluations = evaluated(config, losses, 4, pruner="median")
    assert last_evaluations == [None, None, None, 2, None]


# --------------------------------------------------------------------------- the private file
def url_file(tmp_path, text, mode=0o600):
    path = tmp_path / "url"
    path.write_text(text)
    os.chmod(path, mode)
    return {"storage_url_file": str(path)}


def test_a_file_that_others_may_read_is_refused(config, tmp_path):
    tune = url_file(tmp_path, "postgresql://u:hunter2@127.0.0.1:9/x", mode=0o644)
    with pytest.raises(PermissionDenied) as caught:
        studies.create(config(tune=tune), DATASETS)
    assert "chmod 600" in str(caught.value) and "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["hunter2", "", "http://u:hunter2@host/x", "sqlite:///x"])
def test_a_file_without_a_databases_url_is_refused_without_showing_it(config, tmp_path, text):
    with pytest.raises(ConfigError) as caught:
        studies.create(config(tune=url_file(tmp_path, text)), DATASETS)
    assert "a database URL" in caught.value.what and "hunter2" not in str(caught.value)


def test_no_such_file(config, tmp_path):
    with pytest.raises(NotFound):
        studies.create(config(tune={"storage_url_file": str(tmp_path / "none")}), DATASETS)


def test_a_database_that_does_not_answer_is_an_error_without_its_password(config, tmp_path):
    tune = url_file(tmp_path, "postgresql://u:hunter2@127.0.0.1:1/x")
    with pytest.raises(ClusterError) as caught:
        studies.create(config(tune=tune), DATASETS)
    assert "storage failed" in caught.value.what and "hunter2" not in str(caught.value)
