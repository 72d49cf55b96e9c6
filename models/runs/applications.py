"""The applications of a run on YARN: which there were, and what YARN says that they have used.

    <run.directory>/yarn/applications/<id>.json    submitted, by which command; later its figures

Each submission writes its file, so that an application that ended before its first rank began is
counted too. YARN's figures are final only when an application has ended; then the command that sees
its end (`howdah status`, `submit --wait`, `kill`) writes them here and into run.json's `hours`.
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
from howdah.run_files import RUN_JSON

if TYPE_CHECKING:
    from howdah.hadoop.resourcemanager import ResourceManager

_DIRECTORY = ("yarn", "applications")
_PAUSE_SECONDS = 0.5
_SETTLED_SECONDS = 10.0
"""After its end YARN still adds what its last containers have used."""
_FIGURES = ("vcore_seconds", "mib_seconds", "gpu_seconds")


def note_submission(run_directory: str, application: str) -> None:
    """Write down that an application was submitted for the run."""
    body = {
        "application": application,
        "submitted": _now(),
        "user": user(),
        "command": began_by(),
    }
    _write(_path(run_directory, application), body)


def complete(manager: ResourceManager, run_directory: str) -> dict[str, Any] | None:
    """Put YARN's figures of all applications of the run into run.json; its `hours`.

    Figures that are final are not asked for again. A run.json that another process is writing is
    left alone: the next call completes it. None: there is no run.json.

    Raises:
        HowdahError: YARN or storage does not answer, or may not be read or written.
    """
    noted = {one["application"]: one for one in _noted(run_directory)}
    before = _run(run_directory)
    run = {} if before is None else record.read(run_directory)
    names = {str(one.get("submission")) for one in run.get("attempts") or []} | set(noted)
    figures = {}
    for name in sorted(names):
        if not name.startswith("application_"):
            continue
        entry = noted.get(name, {"application": name})
        known = entry.get("hours") or {}
        if not known.get("final"):
            with contextlib.suppress(NotFound):  # YARN keeps the newest applications only
                known = _asked(manager, name)
                if known != entry.get("hours"):
                    _write(_path(run_directory, name), {**entry, "hours": known})
        if known:
            figures[name] = known
    if before is None:
        return None
    return _put(run_directory, before, run, figures, noted)


def _put(
    run_directory: str, before: bytes, run: dict[str, Any], figures: dict, noted: dict
) -> dict[str, Any]:
    run["hours"] = {**(run.get("hours") or {}), "applications": figures}
    run["hours"] = hours.of_run(run)
    for attempt in run.get("attempts") or []:
        said = noted.get(attempt.get("submission"), {}).get("command")
        if said is not None:
            attempt["command"] = said
    after = (json.dumps(run, indent=1, ensure_ascii=False) + "\n").encode()
    newest = (run.get("attempts") or [{}])[-1].get("submission")
    live = run.get("status") == "running" and not figures.get(newest, {}).get("final")
    if after != before and not live and _run(run_directory) == before:
        storage.write_whole(storage.join(run_directory, RUN_JSON), after)
    return run["hours"]


def _asked(manager: ResourceManager, application: str) -> dict[str, Any]:
    """YARN's figures; of one that has just ended once they stay the same."""
    report = manager.application(application)
    found = hours.of_application(report, final=report.get("state") in OVER)
    until = time.monotonic() + _SETTLED_SECONDS
    ended = (report.get("finishedTime") or 0) / 1000
    recent = found["final"] and manager.clock() - ended < _SETTLED_SECONDS
    while recent and time.monotonic() < until:
        time.sleep(_PAUSE_SECONDS)
        again = hours.of_application(manager.application(application), final=True)
        recent = [again[key] for key in _FIGURES] != [found[key] for key in _FIGURES]
        found = again
    return found


def _noted(run_directory: str) -> Iterator[dict[str, Any]]:
    try:
        entries = storage.list_dir(storage.join(run_directory, *_DIRECTORY))
    except NotFound:
        return
    for entry in entries:
        with contextlib.suppress(HowdahError):  # one that cannot be read is asked for again
            found = storage.read_json(entry.path)
            if isinstance(found, dict) and isinstance(found.get("application"), str):
                yield found


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


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
