"""The rank's process of `howdah train`: what is passed on to it, how it ends, what it leaves."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from howdah.core.processes import process_start
from howdah.training.launch import rank_process
from howdah.training.launch.rank_process import RankProcess
from howdah.training.run.local_dir import RankRecord
from tests import ROOT as REPOSITORY
from tests.support.waiting import wait_until

ROOT = str(REPOSITORY)


def process_of(script: str, tmp_path, grace=30.0) -> RankProcess:
    """A rank that is a Python script; `on_record()` in it does what a rank's start does."""
    head = f"""
import os, signal, subprocess, sys, time
sys.path.insert(0, {ROOT!r})
from howdah.training.run.local_dir import RankRecord
def on_record(): RankRecord.of_this_process(0).write({str(tmp_path)!r})
"""
    argv = [sys.executable, "-c", head + textwrap.dedent(script)]
    return RankProcess(argv, str(tmp_path), grace_seconds=grace)


def outer(tmp_path, script: str, grace: float) -> subprocess.Popen:
    """`RankProcess.run` in a process that we can send signals to; prints its fields at the end."""
    code = f"""
import json, sys
sys.path.insert(0, {ROOT!r})
from tests.training.launch.test_rank_process import process_of
from pathlib import Path
rank = process_of({script!r}, Path({str(tmp_path)!r}), grace={grace})
print("ready", flush=True)
rank.run()
print(json.dumps([rank.exit_code, rank.asked_by, rank.killed]))
"""
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        cwd=ROOT,
    )  # fmt: skip


def wait_for_rank(tmp_path) -> RankRecord:
    return wait_until(lambda: RankRecord.read_all(str(tmp_path)))[0]


# ------------------------------------------------------------------------------------ its end
def test_nothing_is_left_of_a_rank_that_dies(tmp_path):
    """A process that ignores SIGTERM, in a process group of its own, is killed too."""
    script = f"""
    child = '''
    import os, signal, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.setpgid(0, 0)
    print("up", flush=True)
    time.sleep(600)
    '''
    import textwrap
    p = subprocess.Popen([sys.executable, "-c", textwrap.dedent(child)], stdout=subprocess.PIPE)
    p.stdout.readline()
    open({str(tmp_path / "pid")!r}, "w").write(str(p.pid))
    sys.exit(9)
    """
    rank = process_of(script, tmp_path)
    rank.run()
    assert (rank.exit_code, rank.lost) == (9, False)  # it had not come so far as to be lost
    wait_until(lambda: process_start(int((tmp_path / "pid").read_text())) is None)


def test_a_rank_that_vanishes_is_lost(tmp_path):
    script = """
    on_record()
    os.kill(os.getpid(), signal.SIGKILL)
    """
    rank = process_of(script, tmp_path)
    rank.run()
    assert (rank.exit_code, rank.lost, rank.killed) == (-9, True, False)
    assert rank.pid == wait_for_rank(tmp_path).pid


def test_a_rank_that_has_written_its_failure_is_not_lost(tmp_path):
    script = """
    on_record()
    from howdah.training.process import failure
    from howdah.errors import DataError
    failure.write(%r, failure.of(0, DataError("bad")))
    sys.exit(3)
    """ % str(tmp_path)  # noqa: UP031 - braces belong to the script
    rank = process_of(script, tmp_path)
    rank.run()
    assert (rank.exit_code, rank.lost) == (3, False)


def test_a_rank_that_has_noted_its_end_is_not_lost(tmp_path):
    script = """
    own = RankRecord.of_this_process(0).__dict__ | {"ended": True}
    RankRecord(**own).write(%r)
    """ % str(tmp_path)  # noqa: UP031
    rank = process_of(script, tmp_path)
    rank.run()
    assert (rank.exit_code, rank.lost) == (0, False)


def test_a_rank_that_has_failed_and_does_not_end_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(rank_process, "_LEAVE_SECONDS", 0.2)
    script = """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    on_record()
    from howdah.training.process import failure
    from howdah.errors import DataError
    failure.write(%r, failure.of(0, DataError("bad")))
    time.sleep(600)
    """ % str(tmp_path)  # noqa: UP031
    rank = process_of(script, tmp_path, grace=0.2)
    rank.run()
    assert (rank.exit_code, rank.lost) == (-9, False)


# ------------------------------------------------------------------------------------ requests
@pytest.mark.parametrize(("number", "kind"), [(2, "SIGUSR1"), (15, "SIGUSR2"), (1, "SIGUSR2")])
def test_a_signal_is_passed_on_as_an_orderly_request_and_the_end_is_awaited(tmp_path, number, kind):
    script = f"""
    def stop(number, frame):
        time.sleep(0.5)  # the checkpoint
        open({str(tmp_path / "saved")!r}, "w").write(signal.Signals(number).name)
        sys.exit(130)
    signal.signal(signal.SIGUSR1, stop); signal.signal(signal.SIGUSR2, stop)
    on_record()
    while True: time.sleep(600)
    """
    process = outer(tmp_path, script, grace=60)
    wait_for_rank(tmp_path)
    process.send_signal(number)
    out, err = process.communicate(timeout=120)
    assert json.loads(out.splitlines()[-1]) == [130, number, False], err
    assert (tmp_path / "saved").read_text() == kind
    assert "saving a checkpoint, at most 60 s" in err


def test_a_rank_that_does_not_train_yet_is_ended_at_once(tmp_path):
    """It would die of the request for a checkpoint, which it does not handle."""
    script = f"""
    open({str(tmp_path / "up")!r}, "w").close()
    time.sleep(600)
    """
    process = outer(tmp_path, script, grace=3600)
    wait_until((tmp_path / "up").exists)
    process.send_signal(2)
    out, err = process.communicate(timeout=120)
    assert json.loads(out.splitlines()[-1]) == [-15, 2, False], err
    assert "SIGINT: stopping; training has not begun" in err


def test_a_rank_that_does_not_stop_in_time_is_killed(tmp_path):
    script = """
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    on_record()
    while True: time.sleep(600)
    """
    process = outer(tmp_path, script, grace=0.5)
    record = wait_for_rank(tmp_path)
    process.send_signal(2)
    out, err = process.communicate(timeout=120)
    assert json.loads(out.splitlines()[-1]) == [-9, 2, True], err
    assert not record.alive


def test_asked_twice_it_does_not_wait(tmp_path):
    script = """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    on_record()
    while True: time.sleep(600)
    """
    process = outer(tmp_path, script, grace=3600)
    record = wait_for_rank(tmp_path)
    process.send_signal(2)
    assert "(send it again to kill at once)" in process.stderr.readline()
    process.send_signal(2)
    out, err = process.communicate(timeout=120)
    assert json.loads(out.splitlines()[-1])[1:] == [2, True], err
    assert not record.alive


def test_a_signal_that_comes_twice_at_once_is_one_request(tmp_path):
    """`timeout` signals its child and then the child's group; a terminal that closes likewise."""
    script = f"""
    def stop(number, frame):
        time.sleep(0.5)  # the checkpoint
        open({str(tmp_path / "saved")!r}, "w").close()
        sys.exit(143)
    signal.signal(signal.SIGUSR2, stop)
    on_record()
    while True: time.sleep(600)
    """
    rank = process_of(script, tmp_path, grace=60)
    ask = rank._ask_to_stop

    def asked_again_meanwhile(child, number):
        seconds = ask(child, number)
        rank._signals.append(number)
        return seconds

    def send_once_it_runs():
        wait_for_rank(tmp_path)
        rank._signals.append(15)

    rank._ask_to_stop = asked_again_meanwhile
    sender = threading.Thread(target=send_once_it_runs)
    sender.start()
    rank.run()
    sender.join()
    assert (rank.exit_code, rank.asked_by, rank.killed) == (143, 15, False)
    assert (tmp_path / "saved").exists()


def test_a_record_does_not_name_the_process_that_is_asked_or_killed(tmp_path):
    """Who may write in the run directory could name any process."""
    script = """
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    on_record()
    while True: time.sleep(600)
    """
    with subprocess.Popen(["sleep", "600"]) as victim:
        process = outer(tmp_path, script, grace=0.5)
        wait_for_rank(tmp_path)
        RankRecord(
            rank=0, pid=victim.pid, start=process_start(victim.pid), host=socket.gethostname()
        ).write(str(tmp_path))
        process.send_signal(2)
        out, err = process.communicate(timeout=120)
        assert json.loads(out.splitlines()[-1])[1:] == [2, True], err
        assert victim.poll() is None
        victim.kill()


def test_where_it_is_killed_the_kernel_asks_the_rank_to_end(tmp_path):
    script = f"""
    def ended(number, frame):
        open({str(tmp_path / "ended")!r}, "w").close()
        sys.exit(143)
    signal.signal(signal.SIGTERM, ended)
    on_record()
    while True: time.sleep(600)
    """
    process = outer(tmp_path, script, grace=60)
    record = wait_for_rank(tmp_path)
    process.kill()
    process.communicate(timeout=120)
    wait_until(lambda: not record.alive)
    assert (tmp_path / "ended").exists()


# ------------------------------------------------------------------------------------ output
def test_what_a_rank_says_before_it_has_a_log_is_shown_and_kept(tmp_path, capfd):
    script = """
    print("step 1/2", flush=True)
    import no_such_module
    """
    rank = process_of(script, tmp_path)
    rank.run()
    assert rank.exit_code == 1
    shown = capfd.readouterr()
    assert shown.out == ""  # stdout is that of --json
    assert shown.err.startswith("step 1/2\nTraceback")
    assert "No module named 'no_such_module'" in shown.err.splitlines()[-1]
    assert (tmp_path / "logs" / "output").read_text() == shown.err


@pytest.mark.parametrize("full", [True, False])
def test_a_log_that_cannot_be_written_ends_neither_the_lines_nor_the_rank(tmp_path, capfd, full):
    log = tmp_path / "logs" / "output"
    log.parent.mkdir()
    if full:
        log.symlink_to("/dev/full")  # a disk without room
    else:
        log.mkdir()
    script = "for number in range(9999): print(f'step {number}/9999')"  # more than a pipe holds
    rank = process_of(script, tmp_path)
    rank.run()
    assert rank.exit_code == 0
    shown = capfd.readouterr().err.splitlines()
    (reported,) = [line for line in shown if str(log) in line]
    shown.remove(reported)
    assert shown == [f"step {number}/9999" for number in range(9999)]


def test_the_environment_is_built_and_not_changed(monkeypatch):
    monkeypatch.setattr(os, "environ", dict(os.environ) | {
        "PYTHONPATH": "/x", "HOWDAH_TTY": "/dev/pts/9", "HOWDAH_PYTHONPATH": "/asked",
    })  # fmt: skip
    before = dict(os.environ)
    env = rank_process._environment()
    assert os.environ == before
    assert env["PYTHONPATH"].split(os.pathsep) == ["/asked", ROOT]
    assert env["PYTHONSAFEPATH"]
    assert float(env["HOWDAH_STARTED"]) <= time.time()


@pytest.mark.parametrize("terminal", [None, "/dev/pts/1"])
def test_the_rank_draws_its_bar_on_the_terminal_of_the_command_alone(monkeypatch, terminal):
    def ttyname(descriptor):
        if terminal is None:
            raise OSError("no terminal")
        return terminal

    monkeypatch.setenv("HOWDAH_TTY", "/dev/pts/9")
    monkeypatch.setattr(os, "ttyname", ttyname)
    assert rank_process._environment().get("HOWDAH_TTY") == terminal


def test_signals_are_the_caller_s_again_afterwards(tmp_path):
    before = [signal.getsignal(number) for number in (1, 2, 15)]
    process_of("pass", tmp_path).run()
    assert [signal.getsignal(number) for number in (1, 2, 15)] == before


def test_a_save_is_waited_for_when_the_terminal_is_gone(tmp_path):
    """A lost ssh connection: the terminal sends SIGHUP, and a write to it fails with EIO."""
    script = f"""
    import threading
    asked = threading.Event()
    signal.signal(signal.SIGUSR2, lambda *_: asked.set())
    signal.signal(signal.SIGTERM, lambda *_: None)
    on_record()
    asked.wait(60)
    time.sleep(3)  # longer than a rank has that is to end at once
    open({str(tmp_path / "saved")!r}, "w").close()
    sys.exit(143)
    """
    pid, terminal = pty.fork()
    if pid == 0:
        try:
            rank = process_of(script, tmp_path)
            rank.run()
            fields = json.dumps([rank.exit_code, rank.asked_by, rank.killed])
            (tmp_path / "result").write_text(fields)
        finally:
            os._exit(0)
    wait_for_rank(tmp_path)
    os.close(terminal)
    os.waitpid(pid, 0)
    assert json.loads((tmp_path / "result").read_text()) == [143, signal.SIGHUP, False]
    assert (tmp_path / "saved").exists()
