"""The YARN applications of a run, and the resources that YARN reports for them.

    <run.directory>/job/applications/<id>.json    when and by which command it was submitted; later
                                                  its figures

Each submission writes its file, so that an application that ended before its first rank began is
counted too. YARN's figures are final only when an application has ended. The command that sees its
end (`howdah status`, `submit --wait`, `kill`) then writes them here and into run.json's `hours`.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from howdah import storage
from howdah.core.user import user
from howdah.errors import HowdahError, NotFound
from howdah.hadoop.resourcemanager import OVER
from howdah.models.runs import hours, record
from howdah.models.runs.command import began_by
from howdah.models.runs.run_json import utc_now
from howdah.run_files import RUN_JSON
from howdah.storage.shapes import TEXT, Fields

if TYPE_CHECKING:
    from howdah.hadoop.resourcemanager import ResourceManager

_DIRECTORY = ("job", "applications")
_PAUSE_SECONDS = 0.5
_SETTLED_SECONDS = 10.0
"""Seconds after an application's end in which YARN may still add its last containers' usage."""
_SUBMISSION = Fields({"application": TEXT}, needed=("application",))
_FIGURES = ("vcore_seconds", "mib_seconds", "gpu_seconds")


def note_submission(run_directory: str, application: str) -> None:
    """Write down that an application was submitted for the run."""
    body = {"application": application, "submitted": utc_now(), "user": user()}
    _write(_path(run_directory, application), {**body, "command": began_by()})


def complete(manager: ResourceManager, run_directory: str) -> dict[str, Any] | None:
    """Put YARN's figures of all applications of the run into run.json. Returns its `hours`; None if
    there is no run.json.

    Final figures are not requested again. If another process is writing run.json, it is left alone,
    and the next call completes it.

    Raises:
        HowdahError: YARN or storage does not answer, or may not be read or written.
    """
    submissions = {one["application"]: one for one in _submissions(run_directory)}
    before = _run(run_directory)
    run = {} if before is None else record.read(run_directory)
    names = {str(one.get("submission")) for one in run.get("attempts") or []} | set(submissions)
    figures = {}
    for name in sorted(names):
        if not name.startswith("application_"):
            continue
        entry = submissions.get(name, {"application": name})
        figures_of = entry.get("hours") or {}
        if not figures_of.get("final"):
            with contextlib.suppress(NotFound):  # YARN keeps only the newest applications
                figures_of = _figures(manager, name)
                if figures_of != entry.get("hours"):
                    _write(_path(run_directory, name), {**entry, "hours": figures_of})
        if figures_of:
            figures[name] = figures_of
    if before is None:
        return None
    return _put(run_directory, before, run, figures, submissions)


def _put(
    run_directory: str, before: bytes, run: dict[str, Any], figures: dict, submissions: dict
) -> dict[str, Any]:
    run["hours"] = {**(run.get("hours") or {}), "applications": figures}
    run["hours"] = hours.of_run(run)
    for attempt in run.get("attempts") or []:
        command = submissions.get(attempt.get("submission"), {}).get("command")
        if command is not None:
            attempt["command"] = command
    after = (json.dumps(run, indent=1, ensure_ascii=False) + "\n").encode()
    newest = (run.get("attempts") or [{}])[-1].get("submission")
    live = run.get("status") == "running" and not figures.get(newest, {}).get("final")
    if after != before and not live and _run(run_directory) == before:
        storage.write_whole(storage.join(run_directory, RUN_JSON), after)
    return run["hours"]


def _figures(manager: ResourceManager, application: str) -> dict[str, Any]:
    """YARN's figures of an application. If it has just ended, this waits until they are stable."""
    report = manager.application(application)
    figures = hours.of_application(report, final=report.get("state") in OVER)
    until = time.monotonic() + _SETTLED_SECONDS
    ended = (report.get("finishedTime") or 0) / 1000
    recent = figures["final"] and manager.clock() - ended < _SETTLED_SECONDS
    while recent and time.monotonic() < until:
        time.sleep(_PAUSE_SECONDS)
        again = hours.of_application(manager.application(application), final=True)
        recent = [again[key] for key in _FIGURES] != [figures[key] for key in _FIGURES]
        figures = again
    return figures


def _submissions(run_directory: str) -> Iterator[dict[str, Any]]:
    try:
        entries = storage.list_dir(storage.join(run_directory, *_DIRECTORY))
    except NotFound:
        return
    for entry in entries:
        # A file that cannot be read is left out: its figures are requested again.
        with contextlib.suppress(HowdahError):
            yield storage.read_object(entry.path, _SUBMISSION)


def _run(run_directory: str) -> bytes | None:
    try:
        return storage.read_bytes(storage.join(run_directory, RUN_JSON))
    except NotFound:
        return None


def _path(run_directory: str, application: str) -> str:
    return storage.join(run_directory, *_DIRECTORY, f"{application}.json")


def _write(path: str, body: dict[str, Any]) -> None:
    storage.make_dirs(storage.parent(path))
    storage.write_whole(path, (json.dumps(body, indent=1) + "\n").encode())
