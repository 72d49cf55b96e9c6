"""Stop requests, from the signal to what the loop sees; and what ranks write when they fail."""

import errno
import io
import os
import signal
import threading

import pytest

from howdah.errors import Interrupted, StorageError, Terminated, UsageError
from howdah.training.process import failure, output
from howdah.training.process.ending import print_failure
from howdah.training.process.stopping import StopSignals


@pytest.fixture
def signals():
    made = []

    def make(several_ranks: bool) -> tuple[StopSignals, threading.Event]:
        abandoned = threading.Event()
        stop = StopSignals(several_ranks=several_ranks, abandon=abandoned.set, patience=0.05)
        stop.install()
        made.append(stop)
        return stop, abandoned

    yield make
    for stop in made:
        stop.uninstall()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (signal.SIGINT, Interrupted),
        (signal.SIGTERM, Terminated),
        (signal.SIGUSR1, Interrupted),
        (signal.SIGUSR2, Terminated),
    ],
)
def test_a_request_to_one_process_waits_for_the_step_s_end(signals, number, kind):
    stop, abandoned = signals(several_ranks=False)
    stop.stepping(True)
    assert not stop.requested()
    os.kill(os.getpid(), number)
    assert stop.requested()
    assert not stop.alone
    assert isinstance(stop.error(), kind)
    assert not abandoned.is_set()


def test_outside_the_steps_a_request_raises_at_once(signals):
    signals(several_ranks=True)
    with pytest.raises(Terminated):
        os.kill(os.getpid(), signal.SIGUSR2)


def test_a_request_that_came_in_the_last_step_is_not_lost(signals):
    stop, _ = signals(several_ranks=True)
    stop.stepping(True)
    os.kill(os.getpid(), signal.SIGUSR1)
    with pytest.raises(Interrupted):
        stop.stepping(False)


def test_when_the_launcher_tears_down_a_main_thread_that_hangs_is_passed_by(signals):
    stop, abandoned = signals(several_ranks=True)
    stop.stepping(True)
    os.kill(os.getpid(), signal.SIGTERM)  # and the main thread never asks
    assert abandoned.wait(60)
    assert stop.alone
    assert isinstance(stop.error(), Terminated)


def test_when_the_launcher_tears_down_a_main_thread_that_acts_is_left_to_it(signals):
    stop, abandoned = signals(several_ranks=True)
    stop.stepping(True)
    stop.disarm()  # what leaving a rank does first
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.torn_down_within(60)
    assert stop.alone
    assert not abandoned.wait(0.3)


# ---------------------------------------------------------------------------------- failures
def test_causes_come_before_consequences_whatever_the_clock_says(tmp_path):
    place = str(tmp_path)
    failure.write(place, failure.of(0, Terminated("the launcher ended the job"), consequence=True))
    try:
        raise KeyError("bug")
    except KeyError as error:
        failure.write(place, failure.of(2, error))
    failure.write(place, failure.of(1, UsageError("later")))
    assert [one.rank for one in failure.read_all(place)] == [2, 1, 0]
    first = failure.first(place)
    assert first.exit_code == 6
    assert "KeyError: 'bug'" in first.text
    failure.clear(place, rank=2)
    assert failure.first(place).rank == 1
    failure.clear(place)
    assert failure.first(place) is None


def test_ranks_that_begin_at_the_same_time_each_remove_their_own_failure(tmp_path):
    place, errors = str(tmp_path), []

    def clear(rank: int) -> None:
        try:
            failure.clear(place, rank)
        except Exception as error:  # noqa: BLE001 - shown by the assertion
            errors.append(error)

    for _ in range(20):
        for rank in range(8):
            failure.write(place, failure.of(rank, UsageError("all ranks have it")))
        ranks = [threading.Thread(target=clear, args=(rank,)) for rank in range(8)]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join()
    assert errors == [] and failure.first(place) is None


@pytest.mark.parametrize("rank", [0, None])
def test_a_damaged_failure_of_an_earlier_attempt_does_not_stop_the_next_one(tmp_path, rank):
    (tmp_path / "logs").mkdir()
    damaged = tmp_path / "logs" / "failure.0.json"
    damaged.write_text("")
    failure.clear(str(tmp_path), rank)
    assert not damaged.exists()


class Gone(io.StringIO):
    """The pipe to a launcher that has ended, or a terminal that was closed."""

    def write(self, text):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_that_cannot_be_shown_does_not_replace_itself(rank, signals):
    stop, _ = signals(several_ranks=True)
    stop.torn_down_within = lambda seconds: False
    print_failure(failure.of(rank, UsageError("refused")), Gone(), stop)


def test_a_full_disk_is_an_error_of_storage_and_no_defect():
    full = OSError(errno.ENOSPC, "No space left on device", "/tmp/events")
    why = failure.of(0, full)
    assert (why.exit_code, why.error["error"]) == (5, "StorageFull")
    assert "Traceback" not in why.text and "/tmp/events" in why.text
    assert failure.describe(full)["errno"] == errno.ENOSPC  # by which a job's driver judges it


# -------------------------------------------------------------------------------------- the log
@pytest.mark.parametrize("blocked", ["logs", "logs/rank.0"])
def test_a_log_that_cannot_be_written_is_a_typed_error(tmp_path, blocked):
    path = tmp_path / blocked
    path.parent.mkdir(exist_ok=True)
    if blocked == "logs":
        path.write_text("a file")
    else:
        path.symlink_to("/dev/full")
    with pytest.raises(StorageError) as caught:
        output.redirect(str(tmp_path), 0)
    assert caught.value.where == str(tmp_path / "logs" / "rank.0")
