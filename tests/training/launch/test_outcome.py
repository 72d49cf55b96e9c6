"""`howdah train`: what its error says once its rank has ended.

Whose failure it is where several ranks end: tests/jobs/driver/test_driver.py.
"""

import os
import socket
from dataclasses import dataclass

from howdah.config.loader import from_dict
from howdah.errors import ClusterError, DataError, Interrupted, TrainingError
from howdah.training.launch import outcome
from howdah.training.process import failure


def config(tmp_path, **sections):
    return from_dict({"run": {"directory": str(tmp_path / "run")}, **sections})


@dataclass
class Ended:
    """A rank as `outcome.cause` sees it."""

    exit_code: int = 1
    asked_by: int | None = None
    killed: bool = False
    lost: bool = False
    pid: int = 7


def verdict(tmp_path, rank, error=None):
    settings = config(tmp_path)
    if error is not None:
        failure.write(settings.run.directory, failure.of(0, error))
    return outcome.cause(rank, settings, settings.run.directory)


def test_the_rank_s_error_is_the_one_that_is_shown(tmp_path):
    error = verdict(tmp_path, Ended(), DataError("bad shard", where="s", got="x"))
    assert isinstance(error, DataError)
    assert (error.what, error.where, error.got) == ("bad shard", "s", "x")


def test_a_lost_rank_is_named(tmp_path):
    error = verdict(tmp_path, Ended(exit_code=-9, lost=True))
    assert isinstance(error, TrainingError)
    assert error.what == "rank 0 was lost, and training stopped"
    assert error.where.endswith(os.path.join("logs", "rank.0"))
    assert error.expected == f"pid 7 on {socket.gethostname()} to run to the end"


def test_a_rank_that_could_not_write_why_it_ended_was_not_killed(tmp_path):
    error = verdict(tmp_path, Ended(exit_code=5, lost=True))
    assert "exit code 5" in error.got and "disk" in error.got and "SIGKILL" not in error.got


def test_a_defect_s_traceback_comes_last(tmp_path):
    try:
        raise KeyError("bug")
    except KeyError as bug:
        error = verdict(tmp_path, Ended(), bug)
    assert error.exit_code == 6
    assert "rank 0" in error.what
    assert error.got.startswith("Traceback")
    assert error.got.endswith("KeyError: 'bug'")


def test_a_rank_that_does_not_come_to_train_is_an_error_of_the_machine(tmp_path):
    error = verdict(tmp_path, Ended(exit_code=213))
    assert isinstance(error, ClusterError)
    assert error.got == "exit code 213"
    assert "howdah doctor" in error.remedy


def test_a_stop_that_the_rank_was_too_slow_for_says_so(tmp_path):
    error = verdict(tmp_path, Ended(asked_by=2, killed=True))
    assert isinstance(error, Interrupted)
    assert "killed before they had saved" in error.what
    assert error.got == "no checkpoint had been saved yet"
    assert error.remedy == "start it again in the same way: it begins with the base model"


def test_a_stop_in_which_the_save_failed_says_so(tmp_path):
    error = verdict(tmp_path, Ended(asked_by=2), TrainingError("the disk is full"))
    assert isinstance(error, Interrupted)
    assert error.what == "training was interrupted; saving failed: the disk is full"


def test_a_run_that_was_asked_to_stop_but_finished_is_finished(tmp_path):
    assert verdict(tmp_path, Ended(exit_code=0, asked_by=2)) is None
