"""The passes by task."""

from __future__ import annotations

from howdah.config.tasks import Task
from training.evaluation.findings.base import First, Second
from training.evaluation.findings.numbers import FirstOfNumbers, SecondOfNumbers
from training.evaluation.findings.one_label import FirstOfOne, SecondOfOne
from training.evaluation.findings.several import FirstOfSeveral, SecondOfSeveral

__all__ = ["FIRST", "SECOND", "First", "Second"]

FIRST: dict[Task, type[First]] = {
    "single_label": FirstOfOne,
    "multi_label": FirstOfSeveral,
    "regression": FirstOfNumbers,
}
SECOND: dict[Task, type[Second]] = {
    "single_label": SecondOfOne,
    "multi_label": SecondOfSeveral,
    "regression": SecondOfNumbers,
}
