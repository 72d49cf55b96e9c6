"""`howdah train`: what its error says once the ranks have ended."""

from howdah.config.loader import from_dict
from howdah.errors import ClusterError, DataError, Interrupted, TrainingError
from howdah.training.launch import outcome
from howdah.training.process import failure


def config(tmp_path, **sections):
    return from_dict({"run": {"directory": str(tmp_path / "run")}, **sections})


class Ended:
    """A job as `outcome.cause` sees it."""

    def __init__(self, exit_code=1, asked_by=None, killed=False, lost=None, records=None):
        self.program, self.exit_code, self.asked_by, self.killed = (
            "mpirun",
            exit_code,
            asked_by,
            killed,
        )
        self.lost, self.records = lost or {}, records or {}

    def launcher_message(self):
        return "held words"


def verdict(tmp_path, job, *failures):
    settings = config(tmp_path)
    for one in failures:
        failure.write(settings.run.directory, one)
    return outcome.cause(job, settings, settings.run.directory)


def failed(rank, error, when, consequence=False):
    return failure.Failure(
        **(failure.of(rank, error, consequence=consequence).__dict__ | {"unix_time": when})
    )


def test_the_first_failing_rank_is_the_one_that_is_shown(tmp_path):
    error = verdict(
        tmp_path, Ended(lost={2: 30.0}),
        failed(0, TrainingError("rank lost"), 10.0, consequence=True),
        failed(1, DataError("bad shard", where="s", got="x"), 20.0),
    )  # fmt: skip
    assert isinstance(error, DataError)
    assert error.what == "bad shard (rank 1)"
    assert (error.where, error.got) == ("s", "x")


def test_a_lost_rank_comes_before_what_it_caused(tmp_path):
    error = verdict(
        tmp_path, Ended(lost={1: 30.0}), failed(0, TrainingError("x"), 10.0, consequence=True)
    )
    assert isinstance(error, TrainingError)
    assert error.what.startswith("rank 1 was lost")
    assert "rank.1" in error.where


def test_a_defect_s_traceback_comes_last(tmp_path):
    try:
        raise KeyError("bug")
    except KeyError as bug:
        error = verdict(tmp_path, Ended(), failed(1, bug, 1.0))
    assert error.exit_code == 6
    assert "rank 1" in error.what
    assert error.got.startswith("Traceback")
    assert error.got.endswith("KeyError: 'bug'")


def test_a_launcher_that_fails_by_itself_is_quoted(tmp_path):
    error = verdict(tmp_path, Ended(exit_code=213))
    assert isinstance(error, ClusterError)
    assert "exit code 213" in error.got
    assert "held words" in error.got
    assert "howdah doctor" in error.remedy


def test_a_stop_that_ranks_were_too_slow_for_says_so(tmp_path):
    error = verdict(tmp_path, Ended(asked_by=2, killed=True))
    assert isinstance(error, Interrupted)
    assert "killed before they had saved" in error.what
    assert error.got == "no checkpoint had been saved yet"
    assert error.remedy == "start it again in the same way: it begins with the base model"


def test_a_run_that_was_asked_to_stop_but_finished_is_finished(tmp_path):
    assert verdict(tmp_path, Ended(exit_code=0, asked_by=2)) is None
