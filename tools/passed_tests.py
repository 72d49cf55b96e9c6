"""A pytest plugin that writes each passed test to a file and can leave out the tests in it.

    pytest -p passed_tests --note-passed FILE [--leave-out-passed]

A line of the file is JSON: {"test": node id, "seconds": time of set-up, test and tear-down, "file":
hash of the test's file}. It is written when its test ends, so a run that is killed loses at most
the current test. A test whose file has changed counts as not passed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

_IMPORTED = re.compile(r"^from (tests[.\w]*\.test_\w+) import", re.MULTILINE)


@functools.cache
def fingerprint(root: Path, file: str) -> str | None:
    """Hash of a test file and of all test files that it imports from, directly or not; a file may
    import from itself, in a script for another process. None: the file does not exist."""
    if not (root / file).is_file():
        return None
    files, texts = [file], []
    for name in files:
        path = root / name
        texts.append(path.read_text(encoding="utf-8") if path.is_file() else "")
        imported = [module.replace(".", "/") + ".py" for module in _IMPORTED.findall(texts[-1])]
        files += [one for one in dict.fromkeys(imported) if one not in files]
    return hashlib.sha256("\0".join([*files, *texts]).encode()).hexdigest()[:16]


def read(path: Path, root: Path) -> dict[str, float]:
    """{node id: seconds} of the tests that passed; empty if the file does not exist.

    Args:
        root: the folder that node ids are relative to.
    """
    return {
        line["test"]: line["seconds"]
        for line in _lines(path)
        if line["file"] == fingerprint(root, line["test"].partition("::")[0])
    }


def forget(path: Path, files: Sequence[str]) -> None:
    """Remove the tests of these test files from the file."""
    kept = [line for line in _lines(path) if line["test"].partition("::")[0] not in files]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")


def _lines(path: Path) -> list[dict[str, Any]]:
    """The file's lines, without one that a full disk or a kill has cut; [] if there is no file."""
    lines = []
    with contextlib.suppress(FileNotFoundError):
        for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                lines.append(json.loads(text))
    return lines


class _Notes:
    def __init__(self, path: Path, root: Path) -> None:
        self._path, self._root = path, root
        self._seconds = 0.0
        self._passed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup":
            self._seconds, self._passed = 0.0, True
        self._seconds += report.duration
        self._passed = self._passed and report.passed
        if report.when == "teardown" and self._passed:
            file = fingerprint(self._root, report.nodeid.partition("::")[0])
            line = {"test": report.nodeid, "seconds": round(self._seconds, 2), "file": file}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")


class _LeavesOut:
    def __init__(self, passed: dict[str, float]) -> None:
        self._passed = passed

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        gone = [item for item in items if item.nodeid in self._passed]
        items[:] = [item for item in items if item.nodeid not in self._passed]
        config.hook.pytest_deselected(items=gone)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two options."""
    parser.addoption("--note-passed", type=Path)
    parser.addoption("--leave-out-passed", action="store_true")


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugins that the options select."""
    path = config.getoption("--note-passed")
    if path is None:
        return
    if config.getoption("--leave-out-passed"):
        config.pluginmanager.register(_LeavesOut(read(path, config.rootpath)))
    config.pluginmanager.register(_Notes(path, config.rootpath))
