"""Other users' texts on a terminal."""

import json
import os
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from howdah.cli import app, common, jobs, run
from howdah.core.terminal import as_cell, shown
from howdah.errors import StorageError
from yarn.client import control, status

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
    monkeypatch.setattr(jobs, "_yarn", lambda *_: (None, None))
    monkeypatch.setattr(status, "find_job", lambda *_: None)
    monkeypatch.setattr(status, "job_status", lambda *_: application)
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
    lines = [shown(line) for line in status.ps_lines([listed])]
    assert len(lines) == 2
    _nothing_acts("".join(lines))


@pytest.mark.parametrize("how", ["rank", "containers"])
def test_logs_are_escaped(how, monkeypatch):
    from yarn.client import logs

    def of_rank(manager, job, rank, *, follow, out):
        out(f"step 1 {CLEAR}")

    monkeypatch.setattr(jobs, "_yarn", lambda *_: (None, None))
    monkeypatch.setattr(status, "find_job", lambda *_: status.Job("application_1_0001", None))
    monkeypatch.setattr(logs, "of_rank", of_rank)
    monkeypatch.setattr(logs, "of_containers", lambda *_, **__: {"c": {"stderr": f"a{TITLE}b"}})
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
    monkeypatch.setattr(status.Job, "driver_status", lambda self: payload)
    over = application | {"final_status": "SUCCEEDED"}
    monkeypatch.setattr(control, "job_status", lambda *_: over)
    control.wait(Manager(), status.Job("a", None), common.say)

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
