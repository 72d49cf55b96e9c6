"""The hours of wall time, CPU and GPU that a run has used. Pure functions.

There are two separate sources:

- attempts: measured by ranks and `howdah train`. CPU is the user and system time of the processes
  (getrusage(2)); GPU is the wall time of an attempt times the number of GPUs that its ranks see.
- applications: YARN's vcoreSeconds, memorySeconds and resourceSecondsMap of each application of the
  run, killed containers included. They are final once the application has ended.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from typing import Any

GPU = "yarn.io/gpu"
"""YARN's name of GPUs among a node's or an application's resources."""
_DIGITS = 6


def of_run(run: Mapping[str, Any], *, now: datetime.datetime | None = None) -> dict[str, Any]:
    """`hours` of a run.json.

    Args:
        run: the run.json, with `attempts` and, in its previous `hours`, `applications`.
        now: end of the newest attempt if it has no end yet; None: that attempt does not count. An
            older attempt without an end never counts: it was killed, and no process was left to
            write its end.
    Returns:
        {wall, cpu, gpu: hours; vcore, gib: hours of vcores and GiB that YARN allocated, null
        without YARN; complete: true if all figures are final; attempts: the same by attempt;
        applications: by application}.
    """
    applications = dict((run.get("hours") or {}).get("applications") or {})
    records = run.get("attempts") or []
    attempts = [_attempt(one, now if one is records[-1] else None) for one in records]
    submissions = {one.get("submission") for one in records} - {None}
    of_yarn = {name for name in submissions if str(name).startswith("application_")}
    of_yarn |= set(applications)
    reports = [applications.get(name) or {} for name in sorted(of_yarn)]
    measured = [
        one
        for one, record in zip(attempts, records, strict=True)
        if record.get("submission") not in of_yarn
    ]
    return {
        "wall": _sum(one["wall"] for one in attempts),
        "cpu": _sum(one["cpu"] for one in attempts),
        "gpu": _sum([*(one["gpu"] for one in measured), *(one.get("gpu") for one in reports)]),
        "vcore": _sum(one.get("vcore") for one in reports) if reports else None,
        "gib": _sum(one.get("gib") for one in reports) if reports else None,
        "complete": all(one["ended"] for one in measured)
        and all(one.get("final", False) for one in reports),
        "attempts": attempts,
        "applications": applications,
    }


def _attempt(one: Mapping[str, Any], now: datetime.datetime | None) -> dict[str, Any]:
    """{attempt, wall, cpu, gpu, ended}; a figure that was not measured is null."""
    seconds, usage = one.get("seconds"), one.get("usage") or {}
    if seconds is None and now is not None:
        seconds = seconds_since(one.get("started"), now)
    gpus = usage.get("gpus")
    return {
        "attempt": one.get("attempt"),
        "wall": _hours(seconds),
        "cpu": _hours(usage.get("cpu_seconds")),
        "gpu": _hours(seconds * gpus if seconds is not None and gpus is not None else None),
        "ended": "ended" in one,
    }


def seconds_since(started: str | None, until: datetime.datetime) -> float | None:
    """Seconds from a time in run.json; 0 if the clock was set back since, None if it is not a
    time."""
    try:
        elapsed = until - datetime.datetime.fromisoformat(started)
    except (TypeError, ValueError):
        return None
    return max(0.0, elapsed.total_seconds())


def of_application(report: Mapping[str, Any], *, final: bool) -> dict[str, Any]:
    """The hours of an application, from the ResourceManager's report.

    The report has memorySeconds in MiB seconds and, since Hadoop 3.0, resourceSecondsMap, which is
    a mapping or a list of {key, value}, depending on the version.
    """
    more = report.get("resourceSecondsMap") or {}
    entries = more.get("entry", more) if isinstance(more, Mapping) else more
    if isinstance(entries, Mapping) and {"key", "value"} <= set(entries):
        entries = [entries]
    if not isinstance(entries, Mapping):
        entries = {one.get("key"): one.get("value") for one in entries}
    mib_seconds = report.get("memorySeconds")
    return {
        "wall": _hours((report.get("elapsedTime") or 0) / 1000),
        "vcore": _hours(report.get("vcoreSeconds")),
        "gib": _hours(None if mib_seconds is None else mib_seconds / 1024),
        "gpu": _hours(float(entries.get(GPU) or 0)),
        "vcore_seconds": report.get("vcoreSeconds"),
        "mib_seconds": mib_seconds,
        "gpu_seconds": int(entries.get(GPU) or 0),
        "state": report.get("state"),
        "user": report.get("user"),
        "final": final,
    }


def shown(hours: Mapping[str, Any] | None) -> str:
    """`"1.20 h wall, 3.41 h CPU, 8.00 vcore h"`; "" without hours."""
    if not hours:
        return ""
    names = {"wall": "h wall", "cpu": "h CPU", "gpu": "GPU h", "vcore": "vcore h", "gib": "GiB h"}
    parts = [
        f"{hours[key]:.2f} {name}"
        for key, name in names.items()
        if hours.get(key) is not None and (hours[key] or key != "gpu")
    ]
    return ", ".join(parts) + ("" if hours.get("complete", True) else " (not final)")


def tags_of(hours: Mapping[str, Any] | None) -> dict[str, str]:
    """Tags of a run for a tracker: `howdah.hours.cpu` and so on."""
    return {
        f"howdah.hours.{key}": f"{hours[key]:.4f}"
        for key in ("wall", "cpu", "gpu", "vcore", "gib")
        if hours and hours.get(key) is not None
    }


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else round(float(seconds) / 3600, _DIGITS)


def _sum(values: Iterable[float | None]) -> float | None:
    values_present = [value for value in values if value is not None]
    return round(sum(values_present), _DIGITS) if values_present else None
