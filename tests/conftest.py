"""Fixtures shared by all tests; each topic's fixtures live in tests/fixtures/<topic>.py."""

import importlib.util
import os

import pytest

from howdah import storage
from howdah.models.runs.command import VARIABLE
from tests.support import memory_storage

pytest_plugins = [
    f"tests.fixtures.{module}"
    for module in (
        "model",
        "spark",
        "dataset",
        "launched",
        "cluster",
        "etl_yarn",
        "old_spark",
        "storage",
        "gateways",
        "airflow",
        "wheel",
        "pinned",
    )
    if importlib.util.find_spec(f"tests.fixtures.{module}")
]

memory_storage.register()

DAEMONS = ("secure_cluster", "airflow_standalone")
"""Fixtures whose daemons stay until the session's end, besides those of the plain cluster."""


def pytest_collection_modifyitems(items):
    """Modules that need such daemons come last: idle ones take processor time from other tests."""
    last = {}
    for item in items:
        needed = [1 + DAEMONS.index(name) for name in DAEMONS if name in item.fixturenames]
        last[item.path] = max([last.get(item.path, 0), *needed])
    items.sort(key=lambda item: last[item.path])


@pytest.fixture(autouse=True)
def _own_command():
    """A command run within this process notes itself for its child processes, to its process's end.

    Without this, runs of later tests would say that they are part of it.
    """
    yield
    os.environ.pop(VARIABLE, None)


@pytest.fixture(autouse=True)
def _own_umask():
    """A command run within this process bounds the modes of all files to the process's end."""
    yield
    if storage._umask:
        os.umask(storage._umask.pop())
        os.environ.pop(storage.UMASK, None)
