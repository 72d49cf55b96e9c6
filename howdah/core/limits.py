"""Limits that tests make small in the processes which they start.

A limit that no user has a reason to set is a constant beside its use, and a test of one process
patches that constant. What a test starts as another process (a server, a job's driver, a rank)
reads the test's value from an environment variable.
"""

from __future__ import annotations

import json
import os
from typing import Any

__all__ = ["VARIABLE", "limit"]

VARIABLE = "HOWDAH_TEST_LIMITS"
"""Environment variable of tests: {name: value} as JSON."""


def limit(name: str, value: Any) -> Any:
    """The value, or that of the same name in $HOWDAH_TEST_LIMITS."""
    replaced = os.environ.get(VARIABLE)
    return value if replaced is None else json.loads(replaced).get(name, value)
