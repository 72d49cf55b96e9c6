"""`howdah guard`: a command ends with who asked for it, in order if it can, for good if not."""

import json
import os
import signal
import subprocess
import sys

import pytest

from howdah import __version__
from howdah.guard import HELLO
from howdah.processes import descendants, stat_fields
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="by Linux' /proc and prctl(2)")


class Asked:
    """A guard, and what it says."""

    def __init__(self, *words, env=None, first=None, **order):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "howdah.cli", "guard", "--", *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **(env or {})}, bufsize=1,
        )  # fmt: skip
        self.hello = self.process.stderr.readline()
        self.write(first or json.dumps(order))

    def write(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def child(self):
        """The command's process, once it is there."""
        return wait_until(lambda: descendants(self.process.pid))[0]

    def end(self):
        """Its exit code, stdout and stderr; its stdin stays open until it has ended."""
        self.process.wait(60)
        out, err = self.process.stdout.read(), self.process.stderr.read()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            stream.close()
        return self.process.returncode, out, err


@pytest.fixture
def asked(tmp_path):
    made = []

    def ask(*words, **order):
        made.append(Asked(*words, env={"HOWDAH_CACHE": str(tmp_path / "cache")}, **order))
        return made[-1]

    yield ask
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@pytest.fixture
def waiting(asked, tmp_path):
    """Asks for a command that waits for ever: its configuration is a pipe that nobody writes."""
    pipe = str(tmp_path / "config.yaml")
    os.mkfifo(pipe)

    def ask(**order):
        one = asked("config", "check", "--json", "--config", pipe, **order)
        one.pid = one.child()
        # at the pipe: its signal handlers are set by then
        wait_until(lambda: _waits_for_pipe(one.pid))
        return one

    return ask


def _waits_for_pipe(pid):
    with open(f"/proc/{pid}/wchan") as file:
        where = file.read()
    return "fifo" in where or "pipe" in where or _opening(pid)


def _opening(pid):
    """Without rights to see where it waits: it does nothing, with Howdah's modules loaded."""
    fields = stat_fields(pid)
    with open(f"/proc/{pid}/maps") as file:
        return fields is not None and fields[0] == "S" and "_pydantic_core" in file.read()


def gone(pid):
    fields = stat_fields(pid)
    return fields is None or fields[0] in "ZX"


def test_a_command_runs_with_a_configuration_that_leaves_no_file(asked, tmp_path):
    one = asked(
        "config", "check", "--json", "--config", "-",
        config="run: {name: fine}", directory=str(tmp_path / "here"), environment={"X": "y"},
    )  # fmt: skip
    code, out, _ = one.end()
    assert code == 0
    assert json.loads(out)["run"]["name"] == "fine"
    assert one.hello.startswith(f"{HELLO}{__version__} pid ")
    assert os.listdir(tmp_path / "here") == []


def test_its_exit_code_and_words_are_handed_on(asked):
    code, out, err = asked("config", "check", "--json", "--config", "-", config="x: 1").end()
    assert code == 2
    assert json.loads(out)["problems"][0]["what"] == "unknown key 'x'"
    assert "1 problem in stdin" in err


@pytest.mark.parametrize("way", ["a word", "the end of stdin", "a signal", "silence"])
def test_it_ends_the_command_in_order(waiting, way):
    # Longer than the command takes to be there on a machine that has much else to do.
    one = waiting(silence_seconds=5.0 if way == "silence" else None)
    if way == "a word":
        one.write("stop")
    elif way == "the end of stdin":
        one.process.stdin.close()
    elif way == "a signal":
        one.process.send_signal(signal.SIGTERM)
    code, out, err = one.end()
    assert code == 143
    assert json.loads(out)["error"] == "Terminated"  # the command's own last word
    assert "ending `howdah config check" in err
    assert gone(one.pid)


def test_signs_of_life_are_heard(waiting):
    """Beats over a longer time than the silence that would end it, then the word that does."""
    one = waiting(silence_seconds=3.0)
    beat = subprocess.Popen(
        ["sh", "-c", "for i in 1 2 3 4; do sleep 1; echo; done; echo stop"],
        stdout=one.process.stdin,
    )  # fmt: skip
    code, _, err = one.end()
    assert beat.wait() == 0
    assert code == 143
    assert "asked to end: ending" in err


def test_a_command_that_does_not_end_is_killed_after_its_grace(waiting):
    one = waiting(grace_seconds=1.0)
    os.kill(one.pid, signal.SIGSTOP)  # SIGTERM says nothing to it
    one.write("stop")
    code, _, err = one.end()
    assert code == 128 + signal.SIGKILL
    assert "it has not ended within 1 s: killed" in err
    assert gone(one.pid)


def test_nobody_reads_any_more_and_the_command_ends_in_order_all_the_same(waiting):
    one = waiting()
    for stream in (one.process.stdout, one.process.stderr, one.process.stdin):
        stream.close()
    assert one.process.wait(60) == 143
    assert gone(one.pid)


def test_the_guard_killed_leaves_no_command(waiting):
    one = waiting()
    one.process.kill()
    one.process.wait()
    wait_until(lambda: gone(one.pid))


def test_what_the_command_leaves_behind_is_ended(asked, tmp_path):
    """A process that has left its session and its parent, as daemons do."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, subprocess, sys\n"
        "if 'explain' in sys.orig_argv:\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        null = subprocess.DEVNULL\n"
        "        made = subprocess.Popen(['sleep', '1000'], stdout=null, stderr=null)\n"
        f"        open({str(tmp_path / 'pid')!r}, 'w').write(str(made.pid))\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
    )
    one = asked("config", "explain", "run.name", environment={"PYTHONPATH": str(tmp_path)})
    code, out, _ = one.end()
    assert code == 0
    assert "run.name: str" in out
    assert gone(int((tmp_path / "pid").read_text()))


def test_two_commands_of_one_lock_never_run_at_once(waiting, asked):
    first = waiting(lock="dag/run/train/-1")
    second = asked("config", "explain", "run.name", lock="dag/run/train/-1")
    assert "waiting for it" in second.process.stderr.readline()
    other = asked("config", "explain", "run.name", lock="dag/run/train/0")
    assert other.end()[0] == 0
    assert descendants(second.process.pid) == []
    first.process.kill()  # its command is ending still: the lock is not free before that
    first.process.wait()
    code, out, _ = second.end()
    assert code == 0
    assert "run.name: str" in out
    assert gone(first.pid)


def test_who_waits_for_a_lock_can_be_stopped(waiting, asked):
    first = waiting(lock="one")
    second = asked("config", "explain", "run.name", lock="one")
    second.process.stderr.readline()
    second.write("stop")
    assert second.end()[:2] == (143, "")
    first.write("stop")
    first.end()


def test_asked_to_end_before_it_is_told_what_to_do(asked):
    one = asked("config", "explain", "run.name", first="stop")
    assert one.end()[:2] == (143, "")


def test_a_first_line_that_is_none(asked):
    one = asked("config", "explain", "run.name", "--json", nonsense=1)
    code, out, _ = one.end()
    assert code == 2
    assert "config, environment" in json.loads(out)["expected"]
