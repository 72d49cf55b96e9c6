"""The bench of systems: what it sees of a job, and what it counts."""

from __future__ import annotations

from types import SimpleNamespace

from bench.benches import systems
from bench.benches.systems.watch import MARK, Place, Watched, python
from howdah.core.processes import marked


def watched(folder, what: str) -> Watched:
    bench = SimpleNamespace(folder=str(folder), base="")
    place = Place(bench=bench, folder=str(folder), world=2, batch=2)
    argv = python("-m", "tests.workers.counted_steps", folder, what)
    return Watched(argv, place, ours=False)


def both_ranks_and_a_step(run: Watched) -> None:
    run.wait_for("step", lambda: run.steps() and len(run.ranks()) == 2)


def test_a_job_that_recovers_is_seen_to_and_nothing_of_it_stays(tmp_path):
    with watched(tmp_path, "recovers") as run:
        both_ranks_and_a_step(run)
        assert run.listeners() == 0
        assert run.memory()["own_processes"] == 1
        killed = run.kill_rank(1, goes_on=False)
    assert (killed["outcome"], killed["exit_code"]) == ("recovers", None)
    assert killed["steps_repeated"] <= 2  # a step may have come between the last look and the kill
    assert killed["seconds_to_new_step"] > 0
    assert not marked(MARK, tmp_path.name)


def test_the_exit_code_of_a_job_that_ends_is_seen(tmp_path):
    with watched(tmp_path, "ends") as run:
        both_ranks_and_a_step(run)
        killed = run.kill_rank(1, goes_on=False)
    assert (killed["outcome"], killed["exit_code"]) == ("ends", 3)
    assert "seconds_to_new_step" not in killed


def test_lines_of_code_are_counted_without_docstrings_comments_and_blank_lines(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        '"""Docs."""\n\n# why\ndef f(\n    x,\n):\n    """Docs."""\n    return [\n        x]\n'
    )
    assert systems.lines_of_code(str(path)) == 5


def test_what_a_stack_installs_holds_what_its_packages_need():
    number, size = systems.installed(("pydantic",))
    assert number >= 3  # with pydantic-core, typing-extensions
    assert size > 1
    assert systems.installed(("pydantic", "pydantic-core")) == (number, size)


def test_every_stack_has_a_run_of_one_rank():
    assert {stack.alone for stack in systems.STACKS.values()} == set(systems.ALONE)
    assert set(systems.ALONE.values()) <= set(systems.STACKS)
