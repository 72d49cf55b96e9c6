"""The examples in docstrings of training/ are correct."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from tests.runs.training_runs import ROOT

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in Path(ROOT, "training").rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_are_correct(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
