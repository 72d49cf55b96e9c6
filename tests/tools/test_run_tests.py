"""The test runner: each test in one group, failures counted, a stopped run goes on."""

import itertools
import queue
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from howdah.core.child import Child
from tests import ROOT

TOOLS = ROOT / "tools"
MARKS = ("hadoop", "airflow", "spark", "mpi", "gpu")


@pytest.fixture
def runner(monkeypatch, tmp_path):
    """The runner over a repository of its own."""
    monkeypatch.syspath_prepend(str(TOOLS))
    import run_tests

    monkeypatch.setattr(run_tests, "ROOT", tmp_path)
    monkeypatch.setattr(run_tests, "REPORTS", tmp_path / "build" / "reports")
    monkeypatch.setattr(run_tests, "PASSED", tmp_path / "build" / "passed")
    monkeypatch.setattr(run_tests, "has_gpu", lambda: False)
    monkeypatch.setattr(run_tests, "SPARKS", ())
    monkeypatch.setattr(run_tests, "has_room", lambda: True)
    (tmp_path / "tests").mkdir()
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # a second less for each process
    marks = ", ".join(f"'{mark}'" for mark in (*MARKS, "full"))
    (tmp_path / "pyproject.toml").write_text(
        f"[tool.pytest.ini_options]\nmarkers = [{marks}]\n"
        "addopts = \"-m 'not full' -p no:cacheprovider\"\n"
    )
    (tmp_path / ".gitignore").write_text("build/\n__pycache__/\n")
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    return run_tests


def write(runner, name, text):
    (runner.ROOT / "tests" / name).write_text("import pytest\n" + text)


@pytest.mark.parametrize("name", ["test_x.py", "test_x_tf.py", "test_x_torch.py"])
@pytest.mark.parametrize(
    "folder",
    ["tests", "tests/jobs", "tests/jobs/driver", "tests/training", "tests/training/elastic"],
)
def test_each_test_belongs_to_exactly_one_group(runner, folder, name):
    """Whatever markers a test carries, in whatever kind of file."""
    file = runner.ROOT / folder / name
    for count in range(len(MARKS) + 1):
        for marks in itertools.combinations(MARKS, count):
            names = {mark: mark in marks for mark in MARKS}
            owners = [
                group.name
                for group in runner.GROUPS
                if runner.files_of(group, [file]) and eval(group.marks, {}, names)
            ]
            assert len(owners) == 1, (marks, owners)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("test_training_loop_tf.py", "tensorflow"),
        ("test_training_model_torch_resume.py", "torch"),
        ("tests/data/splits/test_planner.py", "other"),
        ("test_etl_tfrecord.py", "other"),
    ],
)
def test_a_framework_s_tests_get_a_process_of_their_own(runner, name, kind):
    assert runner.kind_of(Path(name)) == kind


def test_groups_are_run_and_summed(runner, capsys):
    write(runner, "test_a.py", "def test_one(): pass\n@pytest.mark.mpi\ndef test_two(): pass\n")
    write(runner, "test_b_torch.py", "def test_three(): pytest.skip('not now')\n")
    write(runner, "test_c.py", "@pytest.mark.full\ndef test_four(): raise ValueError\n")
    assert runner.main([]) == 0
    out = capsys.readouterr().out
    assert "===== 2 passed, 1 skipped in " in out.splitlines()[-1]


# Ends well only where the other kind of test runs at the same time.
MEETING = """
import pathlib, time
def meet(own, other):
    pathlib.Path(own).touch()
    deadline = time.monotonic() + 30
    while not pathlib.Path(other).exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
"""


def test_the_daemons_tests_run_beside_the_others(runner, capfd):
    write(runner, "test_a.py", MEETING + "def test_one(): meet('one', 'two')\n")
    write(
        runner,
        "test_b.py",
        MEETING + "@pytest.mark.hadoop\ndef test_two(): print('said', 'it'); meet('two', 'one')\n",
    )
    write(runner, "test_c.py", "@pytest.mark.airflow\ndef test_three(): print('and', 'that')\n")
    assert runner.main(["--pytest=-s"]) == 0
    out = capfd.readouterr().out
    assert "===== 3 passed in " in out.splitlines()[-1]
    assert out.index("--- hadoop: ran in parallel") < out.index("said it")
    assert out.index("--- airflow: ran in parallel") < out.index("and that")


def test_a_failure_beside_the_others_fails_the_run(runner, capfd):
    write(runner, "test_a.py", "def test_one(): pass\n")
    write(runner, "test_b.py", "@pytest.mark.hadoop\ndef test_two(): raise ValueError('lost')\n")
    assert runner.main([]) == 1
    out = capfd.readouterr().out
    assert "FAILED (hadoop) tests.test_b::test_two" in out and "ValueError: lost" in out


def test_past_their_time_both_are_stopped_and_none_is_begun(runner, capsys, monkeypatch):
    hang = "import threading\n{}def test_hang(): threading.Event().wait()\n"
    write(runner, "test_a.py", hang.format(""))
    write(runner, "test_b.py", hang.format("@pytest.mark.hadoop\n"))
    write(runner, "test_c.py", "@pytest.mark.mpi\ndef test_late(): pass\n")
    monkeypatch.setattr(runner, "LIMIT_SECONDS", 5)
    assert runner.main([]) == 1
    out = capsys.readouterr().out
    assert out.count("stopped after") == 2 and "not started" in out


def test_a_lane_that_is_through_takes_a_group_of_the_other(runner, monkeypatch):
    """`mpi` waits behind `core` in one lane, and meets it all the same."""
    monkeypatch.setattr(runner, "has_room", lambda: True)
    write(runner, "test_a.py", MEETING + "def test_one(): meet('one', 'two')\n")
    write(runner, "test_b.py", MEETING + "@pytest.mark.mpi\ndef test_two(): meet('two', 'one')\n")
    assert runner.main([]) == 0


def test_where_there_is_no_room_groups_run_in_turn(runner, capsys, monkeypatch):
    monkeypatch.setattr(runner, "has_room", lambda: False)
    write(runner, "test_a.py", "import pathlib\ndef test_one(): pathlib.Path('one').touch()\n")
    write(
        runner,
        "test_b.py",
        "import pathlib\n@pytest.mark.hadoop\n"
        "def test_two(): assert pathlib.Path('one').exists()\n",
    )
    assert runner.main([]) == 0
    assert "in parallel" not in capsys.readouterr().out


def test_an_interrupt_stops_both_groups(runner, monkeypatch):
    """The one beside too, its fixtures first."""
    write(
        runner,
        "test_b.py",
        MEETING + "@pytest.fixture\n"
        "def daemon():\n    yield\n    pathlib.Path('ended').touch()\n"
        "@pytest.mark.hadoop\ndef test_two(daemon): meet('two', 'never')\n",
    )
    write(runner, "test_a.py", MEETING + "def test_one(): meet('one', 'two')\n")
    goes_on = runner.Lane.goes_on

    def interrupted(lane):
        if (runner.ROOT / "one").exists() and (runner.ROOT / "two").exists():
            raise KeyboardInterrupt
        return goes_on(lane)

    monkeypatch.setattr(runner.Lane, "goes_on", interrupted)
    with pytest.raises(KeyboardInterrupt):
        runner.main([])
    assert (runner.ROOT / "ended").exists()


def test_a_failure_is_named_and_fails_the_run(runner, capsys):
    write(runner, "test_a.py", "def test_one(): pass\ndef test_bad(): raise ValueError\n")
    assert runner.main(["core"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "FAILED (core) tests.test_a::test_bad" in lines
    assert "===== 1 failed, 1 passed in " in lines[-1]


def test_a_file_that_cannot_be_collected_fails_the_run(runner, capsys):
    write(runner, "test_a.py", "raise RuntimeError('at import')\n")
    assert runner.main(["core"]) == 1
    assert "1 error" in capsys.readouterr().out.splitlines()[-1]


def test_no_test_at_all_is_no_success(runner):
    assert runner.main([]) == 1


def test_a_crash_of_pytest_fails_the_run(runner, capsys):
    write(runner, "test_a.py", "import os\ndef test_one(): os._exit(0)\n")
    assert runner.main(["core"]) == 1
    assert "left no report" in capsys.readouterr().out


def test_past_its_time_a_group_is_stopped(runner, capsys, monkeypatch):
    write(runner, "test_a.py", "import threading\ndef test_hang(): threading.Event().wait()\n")
    monkeypatch.setattr(runner, "LIMIT_SECONDS", 1)
    assert runner.main(["core"]) == 1
    out = capsys.readouterr().out
    assert "the time for all tests was used up" in out
    assert "1 error" in out.splitlines()[-1]


def test_a_stopped_group_s_fixtures_end_what_they_started(runner, capsys, monkeypatch):
    write(
        runner,
        "test_a.py",
        "import pathlib, threading, pytest\n"
        "@pytest.fixture\n"
        "def daemon():\n"
        "    yield\n"
        "    pathlib.Path('ended').touch()\n"
        "def test_hang(daemon):\n"
        "    threading.Event().wait()\n",
    )
    monkeypatch.setattr(runner, "LIMIT_SECONDS", 5)
    assert runner.main(["core"]) == 1
    assert (runner.ROOT / "ended").exists()


def test_more_than_the_budget_is_reported_and_is_no_failure(runner, capsys, monkeypatch):
    write(runner, "test_a.py", "def test_one(): pass\n")
    monkeypatch.setattr(runner, "BUDGET_SECONDS", 0)
    assert runner.main(["core"]) == 0
    printed = capsys.readouterr().out
    assert "over the budget of 0 for `make test`" in printed and "  tests.test_a\n" in printed


def test_what_is_stopped_takes_its_children_along(runner):
    script = "sleep 600 & echo $!; trap '' INT TERM; wait; wait; sleep 600"
    lines = queue.Queue()
    process = Child(["sh", "-c", script], on_line=lines.put)
    child = int(lines.get(timeout=60))
    runner.stop(process, patience=1)
    assert not process.alive
    # The signal is sent; the kernel may take a moment more to end a busy machine's process.
    deadline = time.monotonic() + 60
    while _alive(child):
        assert time.monotonic() < deadline, f"process {child} lives on"
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    """The process is there, and no zombie."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.full
def test_the_full_matrix_goes_on_where_it_stopped(runner, capfd):
    """What passed is left out, whatever ended the run before it; of other sources nothing is."""
    write(
        runner,
        "test_a.py",
        "import os, pathlib\n"
        "@pytest.mark.full\n@pytest.mark.parametrize('word', ['a b', 'c'])\n"
        "def test_one(word): pathlib.Path('runs.log').open('a').write(word + ',')\n"
        "def test_two():\n"
        "    if not pathlib.Path('build/repaired').exists(): os._exit(1)\n",
    )
    (runner.ROOT / ".gitignore").write_text("build/\n__pycache__/\nruns.log\n")
    assert runner.main(["--all"]) == 1
    assert "left no report" in capfd.readouterr().out
    (runner.ROOT / "build" / "repaired").touch()
    assert runner.main(["--all"]) == 0
    out = capfd.readouterr().out
    assert "3 passed   0 failed   0 skipped" in out and "2 of them before" in out
    assert (runner.ROOT / "runs.log").read_text() == "a b,c,"
    assert runner.main(["--all"]) == 0
    assert "3 of them before" in capfd.readouterr().out
    assert runner.main([]) == 0  # `make test` runs what it runs
    assert "before" not in capfd.readouterr().out
    (runner.ROOT / "product.py").write_text("")
    assert runner.main(["--all"]) == 0
    out = capfd.readouterr().out
    assert "3 passed" in out and "before" not in out
    assert (runner.ROOT / "runs.log").read_text() == "a b,c,a b,c,"


@pytest.mark.full
def test_a_changed_test_file_counts_for_its_own_tests_and_those_that_import_it(runner, capfd):
    (runner.ROOT / "tests" / "__init__.py").touch()
    write(runner, "test_a.py", "def test_one(): pass\n")
    write(runner, "test_b.py", "from tests.test_a import test_one as one\ndef test_two(): one()\n")
    write(runner, "test_c.py", "def test_three(): pass\n")
    assert runner.main(["--all"]) == 0
    write(runner, "test_a.py", "def test_one(): assert True\n")
    runner.passed_tests.fingerprint.cache_clear()  # of one run
    capfd.readouterr()
    assert runner.main(["--all"]) == 0
    assert "1 of them before" in capfd.readouterr().out


@pytest.mark.full
def test_test_files_may_import_from_themselves_and_from_each_other(runner, capfd):
    (runner.ROOT / "tests" / "__init__.py").touch()
    script = "SCRIPT = '''\nfrom tests.test_{} import one\n'''\n"
    write(runner, "test_a.py", script.format("b") + "def test_one(): pass\n")
    write(runner, "test_b.py", script.format("a") + "def test_two(): pass\n")
    write(runner, "test_c.py", script.format("c") + "def test_three(): pass\n")
    assert runner.main(["--all"]) == 0
    assert "3 passed" in capfd.readouterr().out
    write(runner, "test_a.py", script.format("b") + "def test_one(): assert True\n")
    runner.passed_tests.fingerprint.cache_clear()  # of one run
    assert runner.main(["--all"]) == 0
    assert "1 of them before" in capfd.readouterr().out


def test_a_note_that_was_cut_is_passed_over(runner):
    write(runner, "test_a.py", "def test_one(): pass\ndef test_two(): pass\n")
    assert runner.main(["--all"]) == 0
    notes = runner.PASSED / "core.jsonl"
    text = notes.read_text()
    notes.write_text(text[: len(text) - 9])  # the disk was full
    passed = runner.passed_tests.read(notes, runner.ROOT)
    assert list(passed) == ["tests/test_a.py::test_one"]
    runner.passed_tests.forget(notes, ["tests/test_b.py"])
    assert runner.passed_tests.read(notes, runner.ROOT) == passed


def test_without_git_every_test_is_run(runner, capfd):
    shutil.rmtree(runner.ROOT / ".git")
    write(runner, "test_a.py", "def test_one(): pass\n")
    for _ in range(2):
        assert runner.main(["--all"]) == 0
        out = capfd.readouterr().out
        assert "git does not list the sources" in out and "of them before" not in out


def test_every_test_file_has_a_fingerprint(runner):
    for path in (ROOT / "tests").rglob("test_*.py"):
        assert runner.passed_tests.fingerprint(ROOT, str(path.relative_to(ROOT)))


@pytest.mark.full
def test_a_changed_page_counts_for_the_tests_that_read_pages(runner, capfd, monkeypatch):
    monkeypatch.setattr(runner, "READ_PAGES", ("tests/test_a.py",))
    write(runner, "test_a.py", "def test_one(): pass\n")
    write(runner, "test_b.py", "def test_two(): pass\n")
    assert runner.main(["--all"]) == 0
    (runner.ROOT / "docs").mkdir()
    (runner.ROOT / "docs" / "figures.md").write_text("measured")
    for before in (1, 2):
        capfd.readouterr()
        assert runner.main(["--all"]) == 0
        assert "2 passed   0 failed   0 skipped" in (out := capfd.readouterr().out)
        assert f"{before} of them before" in out


@pytest.mark.full
def test_a_changed_test_file_counts_for_the_tests_that_read_test_files(runner, capfd, monkeypatch):
    monkeypatch.setattr(runner, "READ_TESTS", ("tests/test_a.py",))
    write(runner, "test_a.py", "def test_one(): pass\n")
    write(runner, "test_b.py", "def test_two(): pass\n")
    assert runner.main(["--all"]) == 0
    write(runner, "test_c.py", "def test_three(): pass\n")
    for before in (1, 3):
        capfd.readouterr()
        assert runner.main(["--all"]) == 0
        assert "3 passed   0 failed   0 skipped" in (out := capfd.readouterr().out)
        assert f"{before} of them before" in out


def test_a_test_is_passed_when_its_fixtures_have_ended_well(runner):
    write(
        runner,
        "test_a.py",
        "@pytest.fixture\ndef place():\n    yield\n    raise ValueError\n"
        "def test_one(place): pass\n"
        "def test_two(): pytest.skip('not now')\n"
        "def test_three(): assert False\n"
        "def test_four(): pass\n",
    )
    assert runner.main(["--all"]) == 1
    passed = runner.passed_tests.read(runner.PASSED / "core.jsonl", runner.ROOT)
    assert list(passed) == ["tests/test_a.py::test_four"]


@pytest.mark.parametrize("words", [["--beside"], pytest.param([], marks=pytest.mark.full)])
def test_the_full_matrix_runs_two_groups_at_a_time_if_it_is_asked_to(runner, words):
    text = "import pathlib\n@pytest.mark.full\n@pytest.mark.{}\ndef test_one(): {}\n"
    write(runner, "test_a.py", text.format("mpi", "pathlib.Path('one').touch()"))
    if words:
        write(runner, "test_a.py", MEETING + text.format("mpi", "meet('one', 'two')"))
        write(runner, "test_b.py", MEETING + text.format("hadoop", "meet('two', 'one')"))
    else:
        write(runner, "test_b.py", text.format("hadoop", "assert pathlib.Path('one').exists()"))
    assert runner.main(["--all", *words]) == 0


def test_an_unknown_group_is_named(runner, capsys):
    with pytest.raises(SystemExit) as caught:
        runner.main(["mpl"])
    assert caught.value.code == 2
    assert "no group mpl" in capsys.readouterr().err
