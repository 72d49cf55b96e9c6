"""The lineage of rows, dataset versions, runs, published versions and scored tables.

Everything is read from existing files: manifests of datasets and versions, run.json, the markers of
`howdah score`. A model that began from the weights of another one (`model.base`, `model.init_from`)
inherits its training data, so that it is listed, too; `by` says why.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from howdah import storage
from howdah.config.splits import TRAIN
from howdah.core.terminal import shown
from howdah.data.lineage import forgotten, rejects, shards
from howdah.data.manifest import Dataset, described, version_hash
from howdah.errors import ModelError, NotFound
from howdah.models import scored
from howdah.models.registry import MLFLOW, Published
from howdah.models.version import Version
from howdah.run_files import RUN_JSON

_DEEPEST = 4
"""Depth to which run directories are searched below a root of runs."""
_RUN_KEYS = ("path", "run_id", "status", "dataset")
_VERSION_KEYS = ("name", "version", "path", "run_id", "current", "dataset", "mlflow")
_NOT_RUNS = ("checkpoints", "export", "logs", "predictions", "tensorboard", "job", "attempts")


@dataclass(frozen=True, kw_only=True)
class Places:
    """The directories to search."""

    datasets: Sequence[str] = ()
    """Roots of datasets (data.dataset), or single versions."""
    runs: Sequence[str] = ()
    """Directories with run directories below, or run directories."""
    models: Sequence[str] = ()
    """Published models, or directories of them (publish.directory)."""


def of_row(row_id: str, places: Places) -> dict[str, Any]:
    """Find a row, and all that was made from it.

    Returns:
        {id, forgotten: when it was marked or null, datasets: [{path, hash, created, marked, rows:
        [{split, shard, part}]}], rejected: [{path, hash, created, rows: [{id, reason, detail}]}],
        runs: [{path, run_id, status, dataset, role, by}], models: [{name, version, path, run_id,
        current, dataset, role, by, mlflow}], scored: [{table, partition, path, model, version}]}.
        `role` is trained, or evaluated if the row is not in the split train.
    """
    datasets = [one for root in places.datasets for one in shards.versions(root)]
    rows_of = shards.find(row_id, datasets)
    marks = {root: forgotten.load(root) for root in {_root(one.path) for one in datasets}}
    when = [at for mark in marks.values() if (at := mark.when(row_id)) is not None]
    listed, roles = [], {}
    for dataset in datasets:
        if places_of_it := rows_of.get(dataset.path):
            hash_ = dataset.manifest.dataset_hash
            splits = {place["split"] for place in places_of_it}
            roles[hash_] = "trained" if TRAIN in splits else "evaluated"
            marked = marks[_root(dataset.path)].versions.get(hash_)
            listed.append({**_brief(dataset), "marked": marked, "rows": places_of_it})
    # The row cannot be looked up in versions that `howdah model forget` has removed.
    for mark in marks.values():
        roles = dict.fromkeys(mark.versions_with([row_id]), "trained") | roles
    rejected = rejects.find(row_id, datasets)
    return {
        "id": row_id,
        "forgotten": min(when, default=None),
        "datasets": listed,
        "rejected": [
            {**_brief(one), "rows": rejected[one.path]} for one in datasets if one.path in rejected
        ],
        **_downwards(roles, {}, places),
    }


def of_dataset(path: str, places: Places) -> dict[str, Any]:
    """Find the source of a dataset version (or of all below a root), and all made from it.

    Returns:
        {datasets: [{path, hash, created, source, parent, parts, rows, marked}], runs, models,
        scored}.
    """
    datasets = shards.versions(path)
    marks = forgotten.load(_root(datasets[0].path)) if datasets else forgotten.NONE
    listed = []
    for dataset in datasets:
        manifest = dataset.manifest
        listed.append(
            {
                **_brief(dataset),
                "manifest_hash": dataset.manifest_hash,
                "source": described(manifest),
                "tokenizer": manifest.tokenizer.source,
                "parent": manifest.parent,
                "rows": {split: manifest.rows(split) for split in manifest.splits},
                "marked": marks.versions.get(manifest.dataset_hash),
            }
        )
    roles = {one["hash"]: "trained" for one in listed}
    return {"datasets": listed, **_downwards(roles, {}, places)}


def of_model(version: Version, places: Places) -> dict[str, Any]:
    """Find all that a published version was made from, and all made from it.

    Returns:
        {model: {name, version, path, current, weights_sha256}, run, dataset, base, gate,
        published, mlflow, models: versions that began from it, runs: likewise, scored}.
    Raises:
        ModelError: it is not a published one.
    """
    model, number = Published(storage.parent(version.path)), version.number
    if number is None:
        raise ModelError(
            "the model is not published",
            where=version.address,
            expected="a published model: NAME, NAME@3 or NAME/v=3",
            got=f"the export {version.path}",
        )
    manifest, path = model.version(number), model.path_of(number)
    kept = manifest.get("lineage") or {}
    run_directory = str(manifest.get("run_directory") or "")
    run = storage.read_fields(storage.join(run_directory, RUN_JSON)) if run_directory else {}
    run_values = run if run.get("run_id") == manifest.get("run_id") else {}
    entries = [one for one in model.history() if one["version"] == number]
    published = next((one for one in entries if one["action"] == "publish"), None)
    attempts = run_values.get("attempts") or [{}]

    def of_run(key: str) -> Any:
        return run_values.get(key) if run_values.get(key) is not None else kept.get(key)

    return {
        "model": {
            "name": storage.name(model.root), "version": number, "path": path,
            "current": (model.current() or {}).get("version") == number,
            "weights_sha256": manifest.get("weights_sha256"), "created": manifest.get("created"),
        },
        "run": {
            "path": run_directory, "run_id": manifest.get("run_id"), "there": bool(run_values),
            "step": manifest.get("step"), "finished": of_run("finished"),
            "config_hash": of_run("config_hash"), "git": of_run("git"),
            "mlflow_run_id": of_run("mlflow_run_id"), "hours": of_run("hours"),
            **{k: attempts[-1].get(k) or kept.get(k) for k in ("user", "host", "command")},
        },
        "dataset": _dataset_of(manifest.get("dataset") or {}, of_run("source")),
        "base": of_run("base") or version.info.get("base"),
        "metrics": manifest.get("metrics"),
        "gate": (published or {}).get("gate"),
        "published": [
            {k: one.get(k) for k in ("action", "published", "by", "note")} for one in entries
        ],
        "mlflow": _mlflow(model.root).get(str(number)),
        **_downwards({}, {_place(path): "itself"}, places, without=path),
    }  # fmt: skip


# ------------------------------------------------------------------------------------ downwards
def _downwards(
    roles: Mapping[str, str],
    began: Mapping[str, str],
    places: Places,
    without: str | None = None,
) -> dict[str, Any]:
    """List runs, versions and scored partitions that were made from datasets or versions.

    Args:
        roles: {hash of a dataset: trained or evaluated}.
        began: {path of a version: why it belongs to them}.
        without: path of a version that is not listed itself.
    """
    versions = [one for root in places.models for one in _versions(root)]
    derived = dict(began)
    while True:
        before = len(derived)
        for one in versions:
            how = _how(one, roles, derived)
            if how is not None:
                derived.setdefault(_place(one["path"]), how)
        if len(derived) == before:
            break
    runs = [
        {key: run[key] for key in _RUN_KEYS}
        | {"role": roles.get(run["dataset_hash"], "trained"), "by": how}
        for root in places.runs
        for run in _runs(root, _DEEPEST)
        if (how := _how(run, roles, derived)) is not None
    ]
    models = [
        {key: one[key] for key in _VERSION_KEYS}
        | {"role": roles.get(one["dataset_hash"], "trained"), "by": how}
        for one in versions
        if (how := derived.get(_place(one["path"]))) is not None and one["path"] != without
    ]
    paths = {_place(one["path"]) for one in models} | set(began)
    return {"runs": runs, "models": models, "scored": list(_scored(versions, paths))}


def _how(
    one: Mapping[str, Any], roles: Mapping[str, str], derived: Mapping[str, str]
) -> str | None:
    """Return why a run or a version belongs to them: its dataset, or the model it began from."""
    if one["dataset_hash"] in roles:
        return "dataset"
    return next((f"began from {base}" for base in one["began"] if _place(base) in derived), None)


def _scored(
    versions: Sequence[Mapping[str, Any]], paths: Collection[str]
) -> Iterator[dict[str, Any]]:
    for root in dict.fromkeys(one["root"] for one in versions):
        numbers = [
            one["version"]
            for one in versions
            if one["root"] == root and _place(one["path"]) in paths
        ]
        for marker in scored.markers(root):
            if marker["version"] in numbers:
                yield {"model": storage.name(root), **marker}


# ------------------------------------------------------------------------------------- reading
def _runs(directory: str, depth: int) -> Iterator[dict[str, Any]]:
    try:
        entries = storage.list_dir(directory)
    except NotFound:
        return
    if any(entry.name == RUN_JSON for entry in entries):
        run = storage.read_fields(storage.join(directory, RUN_JSON))
        base = run.get("base") or {}
        yield {
            "path": directory, "run_id": run.get("run_id"), "status": run.get("status"),
            "dataset": run.get("dataset"),
            # run.json has the hash of the manifest; the version's hash is in its name
            "dataset_hash": version_hash(run.get("dataset")),
            "began": [base[key] for key in ("source", "init_from") if base.get(key)],
        }  # fmt: skip
    if depth:
        for entry in entries:
            if entry.is_dir and entry.name not in _NOT_RUNS:
                yield from _runs(entry.path, depth - 1)


def _versions(root: str) -> Iterator[dict[str, Any]]:
    try:
        roots = [root]
        if not Published(root).numbers():
            roots = [entry.path for entry in storage.list_dir(root) if entry.is_dir]
    except NotFound:
        return
    for model in map(Published, roots):
        numbers = model.versions()
        if not numbers:
            continue
        now = (model.current() or {}).get("version")
        registered = _mlflow(model.root)
        for number in numbers:
            manifest = model.version(number)
            kept = manifest.get("lineage") or {}
            base = kept.get("base") or {}
            dataset = manifest.get("dataset") or {}
            yield {
                "root": model.root, "name": storage.name(model.root), "version": number,
                "path": model.path_of(number), "run_id": manifest.get("run_id"),
                "current": number == now, "dataset": dataset.get("path"),
                "dataset_hash": dataset.get("hash"),
                "began": [base[key] for key in ("source", "init_from") if base.get(key)],
                "mlflow": registered.get(str(number)),
            }  # fmt: skip


def _dataset_of(dataset: Mapping[str, Any], source: Any) -> dict[str, Any]:
    """Describe the version that a model was trained on, also after its removal."""
    path, dataset_version = dataset.get("path"), None
    if path and storage.exists(storage.join(path, "manifest.json")):
        dataset_version = shards.versions(path)[0]
    return {
        **dataset,
        "there": dataset_version is not None,
        "manifest_hash": None if dataset_version is None else dataset_version.manifest_hash,
        "source": source if dataset_version is None else described(dataset_version.manifest),
        "marked": forgotten.of_dataset(dataset),
    }


def _mlflow(root: str) -> dict[str, Any]:
    """Return {version: {uri, name, version}} of a model's versions in MLflow's registry."""
    registered = storage.read_fields(storage.join(root, MLFLOW)).get("versions")
    return registered if isinstance(registered, dict) else {}


def _brief(dataset: Dataset) -> dict[str, Any]:
    manifest = dataset.manifest
    return {"path": dataset.path, "hash": manifest.dataset_hash, "created": manifest.created}


def _root(version: str) -> str:
    return storage.parent(version.rstrip("/"))


def _place(path: str) -> str:
    """Return a path in its normal form, since runs and models may spell it differently."""
    path = path.rstrip("/")
    return os.path.abspath(storage.local_path(path)) if storage.is_local(path) else path


def text(result: Mapping[str, Any]) -> Iterable[str]:
    """Format the result of one of the functions above as lines."""
    if "id" in result:
        yield from _row_lines(result)
    for one in result.get("datasets", []) if "id" not in result else []:
        yield f"dataset {one['path']}, made {one['created']}" + _marked(one)
        yield f"    source: {_source(one['source'])}"
        if one["parent"]:
            yield f"    made from: v={one['parent']}"
        yield "    rows: " + ", ".join(f"{split} {n:,}" for split, n in one["rows"].items())
    if "model" in result:
        yield from _model_lines(result)
    for run in result["runs"]:
        yield f"run {run['run_id']} ({run['status']}), {run['role']}: {run['path']} [{run['by']}]"
    for one in result["models"]:
        state = "current, " if one["current"] else ""
        name = f"model {one['name']} v={one['version']}"
        yield f"{name}, {state}{one['role']}: {one['path']} [{one['by']}]"
    for one in result["scored"]:
        yield f"scored by {one['model']} v={one['version']}: {one['table']} {one['partition']}"


def _row_lines(result: Mapping[str, Any]) -> Iterator[str]:
    if result["forgotten"]:
        yield f"forgotten since {result['forgotten']}"
    if not result["datasets"]:
        yield "no dataset version has this row" + (
            " among its kept rows" if result["rejected"] else ""
        )
    for one in result["datasets"]:
        yield f"dataset {one['path']}, made {one['created']}" + _marked(one)
        for row in one["rows"]:
            part = f", part {row['part']}" if row["part"] else ""
            yield f"    {row['split']}{part}: {row['shard']}"
    for one in result["rejected"]:
        yield f"rejected by {one['path']}, made {one['created']}"
        for row in one["rows"]:
            detail = f" ({row['detail']})" if row["detail"] else ""
            yield f"    {shown(row['id'])}: {row['reason']}{shown(detail)}"


def _model_lines(result: Mapping[str, Any]) -> Iterator[str]:
    model, run, data = result["model"], result["run"], result["dataset"]
    state = ", current" if model["current"] else ""
    yield f"model {model['name']} v={model['version']}{state}: {model['path']}"
    gone = "" if run["there"] else " (its run.json is gone)"
    yield f"    run: {run['run_id']}, step {run['step']}, {run['path']}{gone}"
    if run["user"]:
        yield f"    by: {run['user']} on {run['host']}: {run['command']}"
    yield f"    configuration: {run['config_hash']}" + (
        f", git {run['git']['commit']}" if run.get("git") else ""
    )
    removed = "" if data["there"] else " (removed)"
    yield f"    dataset: {data.get('path')}{removed}" + _marked(data)
    yield f"    source: {_source(data['source'] or {})}"
    base = result["base"] or {}
    begun = f", began from {base['init_from']}" if base.get("init_from") else ""
    yield f"    base: {base.get('source')} ({base.get('hash')}){begun}"
    gate = result["gate"]
    if gate:
        bounds = [f"{c['metric']} {c['got']} ({c['wanted']})" for c in gate["checks"]]
        yield f"    gate on {gate['split']}: " + ("; ".join(bounds) or "nothing to check")
    for one in result["published"]:
        note = f", {one['note']}" if one["note"] else ""
        yield f"    {one['action']} {one['published']} by {one['by']}{note}"
    if registered := result["mlflow"]:
        name = f"models:/{registered['name']}/{registered['version']}"
        yield f"    MLflow: {name} at {registered['uri']}"


def _marked(one: Mapping[str, Any]) -> str:
    return f"; had forgotten rows (marked {one['marked']})" if one.get("marked") else ""


def _source(source: Mapping[str, Any]) -> str:
    """Format the result of `described` in a line."""
    words = [f"{source.get('kind')} {source.get('name')}"]
    for key, many in (("partitions", "partition_count"), ("parts", "part_count")):
        names = source.get(key)
        if names:
            rest = source.get(many, len(names)) - len(names[-8:])
            words.append(f"{key} {', '.join(names[-8:])}" + (f" and {rest} before" if rest else ""))
    if source.get("snapshot") is not None:
        words.append(f"snapshot {source['snapshot']}")
    if source.get("watermark"):
        words.append(f"watermark {source['watermark']}")
    return "; ".join(words)
