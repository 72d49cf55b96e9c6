"""Models that were trained on rows which are to be forgotten, and what they have scored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from howdah import storage
from howdah.data.manifest import version_hash
from howdah.etl.history.in_dataset import below
from howdah.models import scored
from howdah.models.registry import EXPORT_INFO, Published
from howdah.run_files import RUN_JSON


def of_runs(places: Sequence[str]) -> Iterator[dict]:
    """{path, dataset: its hash, run_id} of the exports below run directories; {..., status} of the
    runs that have no export of their dataset: they failed, or are under way, and have checkpoints.
    """
    exports, runs = [], []
    for path in _all(places):
        if storage.name(path) == EXPORT_INFO:
            info = storage.read_fields(path)
            dataset = info.get("dataset") or {}
            exports.append({
                "path": storage.parent(path), "dataset": dataset.get("hash"),
                "run_id": info.get("run_id"),
            })  # fmt: skip
        elif storage.name(path) == RUN_JSON:
            runs.append((storage.parent(path), storage.read_fields(path)))
    yield from exports
    for directory, run in runs:
        hash_ = version_hash(run.get("dataset"))
        below = [one for one in exports if one["path"].startswith(f"{directory}/")]
        if hash_ is not None and hash_ not in [one["dataset"] for one in below]:
            yield {
                "path": directory, "dataset": hash_, "run_id": run.get("run_id"),
                "status": str(run.get("status") or "of unknown state"),
            }  # fmt: skip


def published(places: Sequence[str]) -> Iterator[dict]:
    """{path, dataset: its hash, run_id, current, scored: tables} of the versions of models."""
    for model in _models(places):
        now = (model.current() or {}).get("version")
        for number in model.versions():
            manifest = model.version(number)
            dataset = manifest.get("dataset") or {}
            yield {
                "path": model.path_of(number), "dataset": dataset.get("hash"),
                "run_id": manifest.get("run_id"), "current": number == now,
                "scored": scored.tables(model.root, number),
            }  # fmt: skip


def _models(places: Sequence[str]) -> Iterator[Published]:
    for place in places:
        roots = [place]
        if not Published(place).numbers():
            roots = [entry.path for entry in storage.list_dir(place) if entry.is_dir]
        yield from map(Published, roots)


def markers(places: Sequence[str]) -> list[str]:
    """The markers of partitions that the models have scored: they name rows with errors."""
    return [
        storage.join(one["path"], scored.MARKER)
        for model in _models(places)
        for one in scored.markers(model.root)
    ]


def _all(places: Sequence[str]) -> Iterator[str]:
    """Files of directories, and of those below; files that are named."""
    for place in places:
        if storage.is_dir(place):
            yield from (entry.path for entry in below(place))
        elif storage.exists(place):
            yield storage.entry(place).path


def model_lines(one: dict) -> list[str]:
    """A run or published model of `Survey.models`, for the user."""
    state = ", which is current" if one.get("current") else ""
    if one.get("status"):
        state = f", {one['status']}, whose checkpoints were trained on them"
    lines = [f"trained on such rows: {one['path']}{state} ({one['dataset']})"]
    if one.get("scored"):
        tables = ", ".join(one["scored"])
        lines.append(f"    scored {tables}: give their directories as --files")
    return lines
