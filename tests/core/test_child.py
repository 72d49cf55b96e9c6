"""A child process: its lines, its end, and that of its descendants."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from howdah.core import processes
from howdah.core.child import Child
from howdah.core.processes import marked
from tests import ROOT
from tests.support.waiting import wait_until

MARK = "HOWDAH_TEST_MARK"
STUBBORN = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "print('up', flush=True); time.sleep(600)"
)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_all_lines_are_delivered_when_the_block_ends():
    lines = []
    code = (
        "import sys; [print('line', n) for n in range(9999)]; sys.stderr.write('end'); sys.exit(3)"
    )
    with Child(python(code), on_line=lines.append) as child:
        assert child.wait() == child.code == 3
    assert lines == [f"line {n}" for n in range(9999)] + ["end"]


def test_a_callback_that_fails_does_not_stop_the_process(capsys):
    def bad(line):
        raise ValueError(line)

    code = "for n in range(99999): print('more than a pipe holds', n)"
    with Child(python(code), on_line=bad) as child:
        assert child.wait(60) == 0
    assert "more than a pipe holds 0" in capsys.readouterr().err


def test_its_output_is_appended_to_a_file(tmp_path):
    out = tmp_path / "out"
    out.write_text("before\n")
    with Child(python("print('after')"), output=out, cwd=tmp_path) as child:
        assert child.wait() == 0
    assert out.read_text() == "before\nafter\n"


def test_it_has_its_own_session_and_a_grace_period(tmp_path):
    code = (
        "import os, signal, sys, time\n"
        f"def stop(*_): open({str(tmp_path / 'saved')!r}, 'w').close(); sys.exit(7)\n"
        "signal.signal(signal.SIGTERM, stop); print('up', flush=True); time.sleep(600)"
    )
    up = threading.Event()
    child = Child(python(code), on_line=lambda line: up.set(), grace=60)
    assert up.wait(60) and os.getsid(child.pid) == child.pid
    assert child.wait(0.01) is None and child.alive and child.code is None
    assert child.end() and child.code == 7
    assert (tmp_path / "saved").exists()


@pytest.mark.parametrize("own_group", [False, True])
def test_its_descendants_are_killed_with_it(tmp_path, own_group):
    """Also what it has given a process group of its own; and after an orderly end."""
    code = (
        "import subprocess, sys\n"
        f"p = subprocess.Popen([sys.executable, '-c', {STUBBORN!r}], stdout=subprocess.PIPE,\n"
        f"                     process_group={0 if own_group else None})\n"
        "p.stdout.readline()"
    )
    env = {**os.environ, MARK: str(tmp_path)}
    with Child(python(code), env=env) as child:
        assert child.wait(60) == 0
        assert len(marked(MARK, str(tmp_path))) == 1
    wait_until(lambda: not marked(MARK, str(tmp_path)))


def test_a_process_that_ignores_sigterm_is_killed_also_after_an_interrupt(monkeypatch):
    up = threading.Event()
    child = Child(python(STUBBORN), on_line=lambda line: up.set())
    assert up.wait(60)
    assert not child.end(grace=0.2)
    assert child.code == -signal.SIGKILL

    up.clear()
    child = Child(python(STUBBORN), on_line=lambda line: up.set(), grace=3600)
    assert up.wait(60)
    wait = child.wait

    def interrupted(seconds=None):
        if seconds is not None:
            raise KeyboardInterrupt
        return wait()

    monkeypatch.setattr(child, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        child.end()
    assert child.code == -signal.SIGKILL


def test_the_kernel_ends_it_with_its_parent(tmp_path):
    code = (
        "import sys, time; from howdah.core.child import Child\n"
        f"Child([sys.executable, '-c', {STUBBORN!r}], death_signal=9)\n"
        "sys.stdin.read()"
    )
    parent = subprocess.Popen(
        python(code), env={**os.environ, MARK: str(tmp_path)}, cwd=ROOT,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert parent.stdout.readline() == b"up\n"
    parent.kill()
    parent.wait()
    wait_until(lambda: not marked(MARK, str(tmp_path)))


def test_a_process_whose_parent_is_gone_before_the_prctl_ends_itself():
    """Its parent's handler for the signal is no way out: it has inherited that."""
    process = os.fork()
    if process == 0:
        signal.signal(signal.SIGTERM, lambda *_: None)
        processes.die_with_parent(signal.SIGTERM, parent=1 << 30)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 128 + signal.SIGTERM
