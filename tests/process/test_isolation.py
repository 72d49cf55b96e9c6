"""Processes of Howdah's own start isolated; a look through the product for others."""

import ast
import os
import re
import sys

import pytest

from howdah.process import isolation
from tests import ROOT
from tests.test_rooms import ROOMS, parsed, sources

HELPER = ROOT / "howdah" / "process" / "isolation.py"
_STARTS = re.compile(r"^\s*-[mc] ")
"""What follows an interpreter's name in a shell's command."""


def starts(tree: ast.AST) -> list[int]:
    """Lines on which an interpreter gets `-m` or `-c`: in an argument list, or in a text that
    follows an interpreter's name."""
    lines = []
    for node in ast.walk(tree):
        words = node.elts if isinstance(node, ast.List | ast.Tuple) else ()
        for before, word in zip([None, *words], words, strict=False):
            option = isinstance(word, ast.Constant) and word.value in ("-m", "-c")
            # `install -m 644` and the like have another program's name before it; so has kinit
            other = isinstance(before, ast.Constant) or ast.unparse(before or word) == "program"
            if option and len(words) > 1 and not other:
                lines.append(node.lineno)
        if isinstance(node, ast.JoinedStr):
            lines += [
                node.lineno
                for part in node.values
                if isinstance(part, ast.Constant) and _STARTS.match(str(part.value))
            ]
    return lines


def test_no_process_is_started_without_the_helper():
    places = [
        f"{path.relative_to(ROOT)}:{line}"
        for room in ROOMS
        for path in sources(room)
        if path != HELPER
        for line in starts(parsed(path))
    ]
    assert places == []


@pytest.mark.parametrize(
    "text",
    ['[sys.executable, "-m", "howdah.training"]', '[python, "-c", "import os"]',
     'f"exec {python} -m howdah.yarn agent"'],
)  # fmt: skip
def test_the_look_finds_them(text):
    assert starts(ast.parse(text)) == [1]


def test_the_argument_lists():
    assert isolation.module("howdah.jobs.clusters", "agent") == [
        sys.executable, "-P", "-m", "howdah.jobs.clusters", "agent"
    ]  # fmt: skip
    assert isolation.module("yarn", python="./e/bin/python") == [
        "./e/bin/python",
        "-P",
        "-m",
        "yarn",
    ]
    assert isolation.code("pass")[1:] == ["-P", "-c", "pass"]


def test_the_environment(tmp_path, monkeypatch):
    base = {"PYTHONPATH": "/theirs", "PYTHONSTARTUP": "/s.py", "PYTHONINSPECT": "1", "A": "b"}
    env = isolation.environment(base)
    assert env == {"A": "b", "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "howdah"}
    assert base["PYTHONPATH"] == "/theirs"
    variables = base | {"HOWDAH_PYTHONPATH": f"/asked{os.pathsep}plug"}
    monkeypatch.chdir(tmp_path)
    paths = isolation.environment(variables, first=["/spark.zip"])["PYTHONPATH"].split(os.pathsep)
    assert paths == ["/spark.zip", "/asked", str(tmp_path / "plug"), str(ROOT)]
    # an installed Howdah is found by itself: site-packages would come before the standard library
    monkeypatch.setattr(isolation, "home", lambda: isolation.site.getsitepackages()[0])
    assert "PYTHONPATH" not in isolation.environment(base)


def test_a_command_of_the_users_own_finds_its_neighbours():
    assert "PYTHONSAFEPATH" not in isolation.restored(isolation.environment({}))
    assert isolation.restored({"PYTHONSAFEPATH": "1"}) == {"PYTHONSAFEPATH": "1"}


def test_children_of_a_rank_import_what_job_env_names():
    from howdah.jobs.training_process import environment

    env = environment(
        {}, {"PYTHONPATH": "/opt/libs"}, {}, application="a", attempt=None, threads=1, gpus=None,
        ports=None, stacks_path="/s",
    )  # fmt: skip
    assert env["PYTHONPATH"] == "/opt/libs"
    assert "/opt/libs" in isolation.environment(env)["PYTHONPATH"].split(os.pathsep)


def test_a_guard_under_airflow_gets_no_pythonpath_of_dags(monkeypatch):
    from howdah.airflow.runner import runners

    monkeypatch.setenv("PYTHONPATH", "/dags")
    assert "PYTHONPATH" not in runners._environment()
