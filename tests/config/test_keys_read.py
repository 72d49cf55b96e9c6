"""No code reads a key that the configuration does not have.

A key that goes is refused in a file by howdah/config/options/removed.py; code that still reads it
fails only when it runs, which for a cluster's code is in tests of the full matrix.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from howdah.config.model import Config
from tests import ROOT

ROOMS = (
    "bench", "cli", "dags", "data", "etl", "examples", "howdah", "jobs", "models", "serving",
    "tools", "training", "tuning", "yarn",
)  # fmt: skip


def section_of(node: ast.expr, names: dict[str, type[BaseModel]]) -> type[BaseModel] | None:
    """The section that an expression is: `config`, `self._config`, `config.job.worker`, an alias.

    Raises:
        AttributeError: it reads a key that its section does not have.
    """
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    if node.attr in ("config", "_config") and isinstance(node.value, ast.Name):
        return Config if node.value.id == "self" else None
    section = section_of(node.value, names)
    if section is None:
        return None
    if node.attr not in section.model_fields:
        # Airflow's operators have a `config` that is a mapping.
        if not hasattr(section, node.attr) and not hasattr(dict, node.attr):
            raise AttributeError(f"{section.__name__} has no {node.attr}: {ast.unparse(node)}")
        return None
    kind = section.model_fields[node.attr].annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def wrong_reads(tree: ast.AST) -> Iterator[str]:
    """What a module reads of `config`, and of names that stand for one section in a function."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        arguments = [*function.args.args, *function.args.kwonlyargs]
        typed = {a.arg for a in arguments if a.annotation and ast.unparse(a.annotation) == "Config"}
        names: dict[str, type[BaseModel]] = dict.fromkeys(typed, Config)
        stored = [
            (node.targets[0].id, node.value)
            for node in ast.walk(function)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        ]
        for name, value in stored:
            with contextlib.suppress(AttributeError):  # reported below
                section = section_of(value, names)
                if section is not None and [other for other, _ in stored].count(name) == 1:
                    names[name] = section
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute):
                try:
                    section_of(node, names)
                except AttributeError as error:
                    yield f"line {node.lineno}: {error}"


@pytest.mark.parametrize("room", ROOMS)
def test_every_key_that_code_reads_is_there(room):
    wrong = [
        f"{path.relative_to(ROOT)}, {line}"
        for path in sorted(Path(ROOT, room).rglob("*.py"))
        for line in wrong_reads(ast.parse(path.read_text()))
    ]
    assert not wrong, "\n".join(wrong)


def test_a_key_that_is_gone_is_found():
    code = (
        "def f(config: Config):\n    o = config.yarn\n    return o.driver.vcores, config.run.name"
    )
    assert list(wrong_reads(ast.parse(code))) == [
        "line 3: DriverResources has no vcores: o.driver.vcores"
    ]
