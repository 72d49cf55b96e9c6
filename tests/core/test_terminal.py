"""Other users' texts on a terminal."""

import contextlib
import json
import os
import pty
import re
import shlex
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from howdah.cli import app, common, jobs, run
from howdah.core.terminal import as_cell, shown
from howdah.errors import StorageError
from howdah.jobs.status.text import ps_lines
from howdah.yarn.application import YarnApplication

TITLE = "\x1b]0;owned\x07"
CLEAR = "\x1b[2J\x1b[H"
ACTS = [chr(n) for n in (*range(9), *range(11, 32), *range(127, 160))]
ACTS += ["\u2028", "\u2029", "\u202e", "\u2066", "\ud800"]


@pytest.mark.parametrize("character", ACTS, ids=lambda c: f"u{ord(c):04x}")
def test_control_characters_are_escaped(character):
    assert shown(f"a{character}b") == f"a\\u{ord(character):04x}b"


@pytest.mark.parametrize(
    "text",
    ["tab\tand\nline", "Grüße, 日本語, עברית, العربية", "👩‍👩‍👧 e\u0301 \u200f \u00a0", "C:\\x1b"],
)
def test_ordinary_text_stays(text):
    assert shown(text) == text


def test_line_ends_of_windows_are_line_ends():
    assert shown("a\r\nb\rc") == "a\nb\\u000dc"


def test_a_cell_is_one_line():
    assert as_cell("job\nkilled") == "job\\u000akilled" and as_cell(7) == "7"


@pytest.fixture
def application():
    """A job of another user, with escape sequences wherever possible."""
    return {
        "application": "application_1_0001", "state": "RUNNING", "final_status": "UNDEFINED",
        "name": f"bert{CLEAR}\nforged line", "user": "mallory", "queue": "default", "priority": 0,
        "tracking_url": "http://rm/1", "diagnostics": f"{TITLE}AM container died",
        "elapsed_seconds": 3.0, "containers": 3, "run_directory": "hdfs://nn/r", "run": None,
        "job": {
            "state": "running", "world_size": 1, "wanted": 2, "restarts": 0, "preemptions": 0,
            "ranks": [{"rank": 0, "node": f"n1{CLEAR}", "container": "c", "phase": "compute",
                       "doing": f"saving{TITLE}"}],
            "events": [{"time": 0.0, "what": f"rank 1{CLEAR} lost"}],
        },
    }  # fmt: skip


def _nothing_acts(text):
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", text), ascii(text)


@pytest.mark.parametrize("as_json", [True, False])
def test_the_status_of_another_users_job_is_escaped(application, as_json, monkeypatch, capsys):
    application_of_other = YarnApplication(None, "application_1_0001", None)
    monkeypatch.setattr(application_of_other, "status", lambda: application)
    monkeypatch.setattr(jobs, "find", lambda *_: application_of_other)
    done = CliRunner().invoke(app, ["status", "application_1_0001"] + ["--json"] * as_json)
    assert done.exit_code == 0, done.output
    _nothing_acts(done.output)
    assert "\\u001b" in done.output
    if as_json:
        assert json.loads(done.output) == application  # nothing is lost to programs
    else:
        assert not any(line.startswith("forged") for line in done.output.splitlines())


def test_a_list_of_jobs_is_escaped(application):
    listed = {**application, "progress": 1.0, "workers": 1, "step": None}
    lines = [shown(line) for line in ps_lines([listed])]
    assert len(lines) == 2
    _nothing_acts("".join(lines))


@pytest.mark.parametrize("how", ["rank", "containers"])
def test_logs_are_escaped(how, monkeypatch):
    def rank_log(rank, *, follow, out):
        out(f"step 1 {CLEAR}")

    application = YarnApplication(None, "application_1_0001", None)
    monkeypatch.setattr(application, "rank_log", rank_log)
    monkeypatch.setattr(application, "container_logs", lambda *_: {"c": {"stderr": f"a{TITLE}b"}})
    monkeypatch.setattr(jobs, "find", lambda *_: application)
    done = CliRunner().invoke(
        app, ["logs", "application_1_0001"] + ["--rank", "0"] * (how == "rank")
    )
    assert done.exit_code == 0, done.output
    _nothing_acts(done.output)
    assert "\\u001b" in done.output


def test_relayed_lines_and_errors_are_escaped(application, monkeypatch, capsys):
    class Manager:
        def application(self, _):
            return {"state": "FINISHED"}

    payload = {"events": [], "lines": [[1, f"step 1{CLEAR}"]]}
    over = application | {"final_status": "SUCCEEDED"}
    yarn_application = YarnApplication(Manager(), "a", None)
    monkeypatch.setattr(yarn_application, "driver_status", lambda: payload)
    monkeypatch.setattr(yarn_application, "status", lambda: over)
    yarn_application.wait(common.say)

    def fails():
        raise StorageError("cannot read", got=f"{TITLE}no")

    assert run(fails) == 5 and run(fails, as_json=True) == 5
    out, err = capsys.readouterr()
    _nothing_acts(out + err)
    assert "step 1\\u001b[2J" in err and "\\u001b]0;owned" in out and "\\u001b]0;owned" in err


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_a_command_outlives_the_process_that_reads_its_lines(kind, tmp_path):
    reader, writer = os.pipe() if kind == "pipe" else os.openpty()
    os.close(reader)
    program = (
        "import sys\n"
        "from howdah.cli.common import answer, say\n"
        "say('one'); say('two'); answer({}, False, ['three'] * 2)\n"
        "sys.stdout.flush(); open(sys.argv[1], 'w').write('went on')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "file"], stdout=writer, stderr=writer,
        timeout=60, check=False, env={**os.environ, "PYTHONUNBUFFERED": ""},
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, (tmp_path / "file").read_text()) == (0, "went on")


# ------------------------------------------------------------- streams that take nothing, or little
HOWDAH = f"{shlex.quote(sys.executable)} -m howdah.cli"
PREDICT = f"{shlex.quote(sys.executable)} -c " + shlex.quote(
    "from types import SimpleNamespace as Some\n"
    "from howdah.models import version\n"
    "from howdah.serving.prediction import lines as predict\n"
    "from howdah.cli import main\n"
    "version.open_version = lambda model, directory: Some(path=model)\n"
    "predict.open_model = lambda *_, **__: Some(kind='text', pairs=False, run_id='r', run_by='')\n"
    "predict.outputs_of, predict.classify = lambda model: None, lambda model, rows: rows\n"
    "predict.as_json = lambda row, *_: row.id\n"
    "main()"
)
"""The command line with a model that answers a line by its number."""


def shell(line: str, **env: str) -> subprocess.CompletedProcess:
    """A line of bash; its exit code is that of the first part of a pipe."""
    return subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"], stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONUNBUFFERED": "", **env},
    )  # fmt: skip


def _ended(done: subprocess.CompletedProcess, code: int) -> None:
    for sign in ("Traceback", "Exception ignored"):
        assert sign not in done.stderr + done.stdout, done.stderr
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("config check --set run.name=a >&-", 0),
        ("--version >&-", 0),
        ("config check --set a.b=1 --json >&-", 2),
        ("config check --set a.b=1 <&- >&- 2>&-", 2),
        ("config check --set run.name=a <&- >&- 2>&-", 0),
    ],
)
def test_a_command_without_a_standard_stream_has_its_own_exit_code(words, code):
    _ended(shell(f"{HOWDAH} {words}"), code)


def test_files_and_children_do_not_get_the_number_of_a_closed_stream(tmp_path):
    program = (
        "import os, subprocess, sys\n"
        "from howdah.cli import streams\n"
        "streams.prepare()\n"
        "made = open('file', 'w')\n"
        "print('to stdout'); print('to stderr', file=sys.stderr)\n"
        "child = subprocess.run(['ls', '-l', '/proc/self/fd'], stdout=made)\n"
        "assert sys.stdin is None and child.returncode == 0 and made.fileno() > 2"
    )
    line = f"cd {tmp_path} && {shlex.quote(sys.executable)} -c {shlex.quote(program)} <&- >&- 2>&-"
    _ended(shell(line, PYTHONPATH=os.pathsep.join(sys.path)), 0)
    listed = (tmp_path / "file").read_text()
    assert [n for n in (0, 2) if f" {n} -> /dev/null" in listed] == [0, 2], listed
    assert "to std" not in listed


@pytest.mark.parametrize("words", ["predict --model m --stdin", "guard config check"])
def test_a_command_that_needs_a_closed_stdin_says_so(words):
    done = shell(f"{HOWDAH} {words} <&-")
    _ended(done, 2)
    assert "stdin is closed" in done.stderr and "remedy:" in done.stderr


@pytest.mark.parametrize("unbuffered", ["", pytest.param("1", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "words",
    [
        "config check --set run.name=a",
        "config check --set run.name=a --json",
        "config init",
        "--version",
        "--help",
    ],
)
def test_a_full_disk_behind_stdout_is_an_error_of_storage(words, unbuffered):
    done = shell(f"{HOWDAH} {words} >/dev/full", PYTHONUNBUFFERED=unbuffered)
    _ended(done, StorageError.exit_code)
    assert done.stderr.count("cannot write to stdout: no space left") == 1


def test_an_error_that_cannot_be_printed_keeps_its_exit_code():
    done = shell(f"{HOWDAH} config check --set a.b=1 --json >/dev/full")
    _ended(done, 2)
    assert "cannot write to stdout" in done.stderr and "unknown" in done.stderr
    _ended(shell(f"{HOWDAH} config check --set a.b=1 2>/dev/full"), 2)


def test_predictions_end_where_stdout_takes_no_more():
    assert shell(f"seq 3 | {PREDICT} predict --model m --stdin").stdout == "0\n1\n2\n"
    full = shell(f"{PREDICT} predict --model m --stdin >/dev/full < <(seq 3)")
    _ended(full, StorageError.exit_code)
    assert "cannot write to stdout: no space left" in full.stderr
    # There is no end of lines: it ends as nothing reads its answers.
    _ended(shell(f"{PREDICT} predict --model m --stdin < <(yes) | head -n 1"), 0)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("config check --set run.name=a", 0),
        ("config init", 0),
        ("--version", 0),
        ("--help", 0),
        ("config check --set a.b=1 --json", 2),
        ("nope --json", 2),
    ],
)
def test_a_pipe_that_nothing_reads_leaves_the_exit_code(words, code):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "howdah.cli", *words.split()], stdout=writer,
        stderr=subprocess.PIPE, text=True, timeout=60, check=False,
    )  # fmt: skip
    os.close(writer)
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr
    assert done.returncode == code, done.stderr


@pytest.mark.parametrize("as_json", [True, False])
def test_characters_that_stdout_lacks_are_escaped(as_json):
    done = shell(
        f"{HOWDAH} config check --set run.directory=d€😀é {'--json' * as_json} | iconv -f latin1",
        PYTHONUTF8="0", PYTHONIOENCODING="latin-1",
    )  # fmt: skip
    _ended(done, 0)
    if as_json:
        assert json.loads(done.stdout)["run"]["directory"] == "d€😀é"
    else:
        assert "directory: d\\u20ac\\ud83d\\ude00é\n" in done.stdout


def test_logs_that_are_followed_end_where_nothing_reads_them():
    program = (
        "import itertools\n"
        "from howdah.cli import jobs as commands, main\n"
        "from howdah.yarn.application import YarnApplication\n"
        "def rank_log(*_, follow, out):\n"
        "    for step in itertools.count(): out(f'step {step}')\n"
        "YarnApplication.rank_log = rank_log\n"
        "commands.find = lambda *_: YarnApplication(None, 'application_1_1', None)\n"
        "main()"
    )
    line = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} logs application_1_1 -f"
    done = shell(f"{line} | head -n 2")
    _ended(done, 0)
    assert done.stdout == "step 0\nstep 1\n"


def test_what_goes_on_is_a_line_that_is_replaced_and_other_lines_stay(tmp_path):
    """On a terminal of its own: a process prints, while its activity is shown."""
    program = """
import sys
from howdah.cli import streams
from howdah.cli.common import say
from howdah.core import activity
with streams.live_line(), activity.Stages(("read", "write"), say) as stages:
    stages.begin("read")
    sys.stdin.readline()
    say("12 rows")
    stages.begin("write")
say("the end")
"""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stderr=theirs,
        env=os.environ | {"TERM": "xterm"},
    ) as process:  # fmt: skip
        os.close(theirs)
        text = b""
        while b"1/2 read" not in text:  # it is shown before the stage has ended
            text += os.read(ours, 4096)
        process.stdin.write(b"\n")
        process.stdin.close()
        with contextlib.suppress(OSError):  # the terminal's other end is gone
            while more := os.read(ours, 4096):
                text += more
        os.close(ours)
        assert process.wait(60) == 0
    stays = [line.rpartition(b"\x1b[K")[2].strip() for line in text.split(b"\n")]
    stays = [re.sub(rb"\d+\.\d s$", b"S", line) for line in stays]
    assert stays == [b"12 rows", b"1/2 read: S", b"2/2 write: S", b"the end", b""]
