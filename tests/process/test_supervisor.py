"""`howdah guard`: a command ends with its caller, by SIGTERM if that suffices, else by SIGKILL."""

import errno
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import types

import pytest

from howdah import __version__
from howdah.core.processes import descendants, stat_fields
from howdah.process.supervisor import HELLO
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="by Linux' /proc and prctl(2)")


class Supervised:
    """A `howdah guard` process and its streams."""

    def __init__(self, *argv, env=None, first=None, **request):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "howdah.cli", "guard", "--", *argv],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **(env or {})}, bufsize=1,
        )  # fmt: skip
        self.hello = self.process.stderr.readline()
        self.write(first or json.dumps(request))

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
def supervised(tmp_path):
    made = []

    def start(*argv, **request):
        made.append(Supervised(*argv, env={"HOWDAH_CACHE": str(tmp_path / "cache")}, **request))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.wait()


@pytest.fixture
def waiting(supervised, tmp_path):
    """Starts a command that waits for ever: its configuration is a pipe that is never written."""
    pipe = str(tmp_path / "config.yaml")
    os.mkfifo(pipe)

    def start(**request):
        one = supervised("config", "check", "--json", "--config", pipe, **request)
        one.pid = one.child()
        # blocked on the pipe: its signal handlers are set by then
        wait_until(lambda: _waits_for_pipe(one.pid))
        return one

    return start


def _waits_for_pipe(pid):
    with open(f"/proc/{pid}/wchan") as file:
        where = file.read()
    return "fifo" in where or "pipe" in where or _opening(pid)


def _opening(pid):
    """True if it sleeps with Howdah's modules loaded, for where /proc hides the wait channel."""
    fields = stat_fields(pid)
    with open(f"/proc/{pid}/maps") as file:
        return fields is not None and fields[0] == "S" and "_pydantic_core" in file.read()


def gone(pid):
    fields = stat_fields(pid)
    return fields is None or fields[0] in "ZX"


def test_a_command_runs_with_a_configuration_that_leaves_no_file(supervised, tmp_path):
    one = supervised(
        "config", "check", "--json", "--config", "-",
        config="run: {name: fine}", directory=str(tmp_path / "here"), environment={"X": "y"},
    )  # fmt: skip
    code, out, _ = one.end()
    assert code == 0
    assert json.loads(out)["run"]["name"] == "fine"
    assert one.hello.startswith(f"{HELLO}{__version__} pid ")
    assert os.listdir(tmp_path / "here") == []


def test_exit_code_and_output_are_passed_on(supervised):
    code, out, err = supervised("config", "check", "--json", "--config", "-", config="x: 1").end()
    assert code == 2
    assert json.loads(out)["problems"][0]["what"] == "unknown key 'x'"
    assert "1 problem in stdin" in err


@pytest.mark.parametrize("way", ["stop", "end of stdin", "signal", "silence"])
def test_the_command_gets_sigterm(waiting, way):
    # Longer than the command takes to start on a busy machine.
    one = waiting(silence_seconds=5.0 if way == "silence" else None)
    if way == "stop":
        one.write("stop")
    elif way == "end of stdin":
        one.process.stdin.close()
    elif way == "signal":
        one.process.send_signal(signal.SIGTERM)
    code, out, err = one.end()
    assert code == 143
    assert json.loads(out)["error"] == "Terminated"  # the command's own output
    assert "ending `howdah config check" in err
    assert gone(one.pid)


def test_empty_lines_are_heartbeats(waiting):
    """Heartbeats for longer than silence_seconds, then "stop"."""
    one = waiting(silence_seconds=5.0)  # longer than the command takes to start on a busy machine
    beats = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do echo; sleep 0.5; done; echo stop"
    beat = subprocess.Popen(["sh", "-c", beats], stdout=one.process.stdin)
    code, _, err = one.end()
    assert beat.wait() == 0
    assert code == 143
    assert "stopped by the caller: ending" in err


def test_a_command_that_does_not_end_is_killed_after_its_grace(waiting):
    one = waiting(grace_seconds=1.0)
    os.kill(one.pid, signal.SIGSTOP)  # it cannot handle SIGTERM
    one.write("stop")
    code, _, err = one.end()
    assert code == 128 + signal.SIGKILL
    assert "it has not ended within 1 s: killed" in err
    assert gone(one.pid)


def test_closed_output_pipes_do_not_disturb_an_orderly_end(waiting):
    one = waiting()
    for stream in (one.process.stdout, one.process.stderr, one.process.stdin):
        stream.close()
    assert one.process.wait(60) == 143
    assert gone(one.pid)


def test_a_killed_supervisor_leaves_no_command(waiting):
    one = waiting()
    one.process.kill()
    one.process.wait()
    wait_until(lambda: gone(one.pid))


def test_descendants_of_the_command_are_ended(supervised, tmp_path):
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
    environment = {"HOWDAH_PYTHONPATH": str(tmp_path)}
    one = supervised("config", "explain", "run.name", environment=environment)
    code, out, _ = one.end()
    assert code == 0
    assert "run.name: str" in out
    assert gone(int((tmp_path / "pid").read_text()))


def test_two_commands_of_one_lock_never_run_at_once(waiting, supervised):
    first = waiting(lock="dag/run/train/-1")
    second = supervised("config", "explain", "run.name", lock="dag/run/train/-1")
    assert "waiting for it" in second.process.stderr.readline()
    other = supervised("config", "explain", "run.name", lock="dag/run/train/0")
    assert other.end()[0] == 0
    assert descendants(second.process.pid) == []
    first.process.kill()  # its command is still ending, and holds the lock until it has
    first.process.wait()
    code, out, _ = second.end()
    assert code == 0
    assert "run.name: str" in out
    assert gone(first.pid)


def test_a_supervisor_that_waits_for_a_lock_can_be_stopped(waiting, supervised):
    first = waiting(lock="one")
    second = supervised("config", "explain", "run.name", lock="one")
    second.process.stderr.readline()
    second.write("stop")
    assert second.end()[:2] == (143, "")
    first.write("stop")
    first.end()


def test_stop_instead_of_a_request(supervised):
    one = supervised("config", "explain", "run.name", first="stop")
    assert one.end()[:2] == (143, "")


def test_a_first_line_that_is_no_request(supervised):
    one = supervised("config", "explain", "run.name", "--json", nonsense=1)
    code, out, _ = one.end()
    assert code == 2
    assert "config, environment" in json.loads(out)["expected"]


def test_a_cache_that_cannot_be_written_is_one_message():
    one = Supervised(
        "config", "explain", "run.name", "--json", env={"HOWDAH_CACHE": "/proc/none"}, lock="x"
    )
    code, out, err = one.end()
    assert code == 5 and "Traceback" not in err
    assert json.loads(out)["where"].startswith("/proc/none/guards")


def test_a_cache_without_locks_is_an_error_of_storage(tmp_path, monkeypatch):
    from howdah.errors import StorageError
    from howdah.process import supervisor

    def flock(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setenv("HOWDAH_CACHE", str(tmp_path))
    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(StorageError, match="cannot lock this task's file") as caught:
        supervisor._acquire_lock("key", types.SimpleNamespace(stopped=""))
    assert "No locks available" in caught.value.got


def test_old_locks_are_swept_and_held_ones_are_not(waiting, supervised, tmp_path):
    held = waiting(lock="held")
    folder = str(tmp_path / "cache" / "guards")
    old = time.time() - 31 * 86400
    (held_path,) = [os.path.join(folder, name) for name in os.listdir(folder)]
    os.utime(held_path, (old, old))
    for name, age in (("gone", 31), ("kept", 29)):
        path = os.path.join(folder, name)
        open(path, "w").close()
        os.utime(path, (time.time() - age * 86400,) * 2)
    assert supervised("config", "explain", "run.name", lock="mine").end()[0] == 0
    mine = hashlib.sha256(b"mine").hexdigest()[:32]
    assert set(os.listdir(folder)) == {os.path.basename(held_path), "kept", mine}
    held.write("stop")
    held.end()


def test_a_lock_file_that_is_swept_while_it_is_opened_is_opened_again(tmp_path, monkeypatch):
    from howdah.process import supervisor

    monkeypatch.setenv("HOWDAH_CACHE", str(tmp_path))
    path = tmp_path / "guards" / hashlib.sha256(b"key").hexdigest()[:32]
    real, swept = fcntl.flock, []

    def flock(file, how):
        real(file, how)
        if not swept:  # between its opening and its lock another supervisor sweeps it
            swept.append(os.unlink(path))

    monkeypatch.setattr(fcntl, "flock", flock)
    caller = types.SimpleNamespace(stopped="")
    lock = supervisor._acquire_lock("key", caller)
    assert swept and os.path.samestat(os.fstat(lock.fileno()), os.stat(path))
    lock.close()
