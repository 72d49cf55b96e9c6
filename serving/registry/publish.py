"""Publish a run's export as the next version of a model, or make an older version current again.

A version is copied under a name that no reader opens, read back and compared, and published by one
rename. The history decides which version is current. Its entries are created exclusively, so that
of two publishers the second sees the first one's entry, and compares its model with that version.
current.json is a copy of the newest entry; after writing it a publisher checks that the entry is
still the newest. A publisher killed at any point leaves a version that is whole or invisible, and
the same command completes it.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import secrets
import time
from collections.abc import Callable, Iterator
from typing import BinaryIO

from howdah import storage
from howdah.config.model import Config
from howdah.core.activity import Progress
from howdah.core.user import user_and_host
from howdah.data.lineage import forgotten
from howdah.errors import AlreadyExists, ForgottenRows, ModelError, NotFound, UsageError
from howdah.models import integrity
from howdah.models.registry import EXPORT_FOLDERS, MANIFEST, Published, VersionIdentity, manifest_of
from howdah.models.runs.run_json import utc_now
from howdah.serving.registry.gate import Evaluate, FinishedRun, GateVerdict, finished_run, judge
from howdah.storage import Entry, commit

FORMAT_VERSION = 1
_CHUNK = 8 * 2**20
_LONG_BYTES = 2**30
"""Files of this size get a line of their own when they are copied."""
_STAGING = re.compile(r"staging-[0-9a-f]{12}")
_STALE_SECONDS = 24 * 3600.0


def publish(
    config: Config,
    evaluate: Evaluate,
    *,
    note: str | None = None,
    review: Callable[[FinishedRun, GateVerdict], None] = lambda run, verdict: None,
    progress: Progress = lambda line: None,
) -> dict:
    """Publish the export of the configuration's run, if it passes the gate.

    Publishing a run again changes nothing, even after another run was published or a rollback.

    Args:
        evaluate: see gate.judge.
        note: text for the history, e.g. who approved the version.
        review: called with the run and the gate's verdict before anything is written; may raise.
        progress: takes a line.
    Returns:
        {name, version, path, pointer, changed, run_id, run_directory, framework, step, metrics,
        gate, previous}.
    Raises:
        CheckFailed: the gate's bounds are missed.
        ForgottenRows: training rows were forgotten since.
        ModelError: no finished run, or its export is damaged.
    """
    run = finished_run(config.run.directory)
    model = Published(config.model_directory)
    version = _version_of(model, run, progress)
    if version is not None and version in _order(model.newest()[1]):
        _write_pointer(model)
        progress(f"run {run.run_id} is version {version} already")
        return _result(model, version, None, changed=False)
    _refuse_forgotten(run.dataset, run.run.get("base"), run.directory, config.data.dataset)
    verdict = judge(config, evaluate, run=run)
    review(run, verdict)
    verdict.require("gate")
    if version is None:
        version = _add_version(model, run, progress)
    while True:
        newest, now = model.newest()
        if version in _order(now):  # another publisher of this run was faster
            return _result(model, version, now, changed=False)
        # Another run may have become current while this one was copied.
        verdict = judge(config, evaluate, run=run)
        verdict.require("gate")
        entry = _entry(model, version, now, "publish", note) | {"gate": verdict.as_dict()}
        if _append_entry(model, newest, entry):
            return _result(model, version, now, changed=True)


def republish(
    config: Config,
    version: int,
    *,
    note: str | None = None,
    despite_forgotten: bool = False,
    progress: Progress = lambda line: None,
) -> dict:
    """Make an earlier version current again, without the gate.

    Args:
        despite_forgotten: accept a version whose training rows were forgotten since; the history
            says so.
    Raises:
        ForgottenRows: training rows were forgotten since.
        ModelError: no such version, or its files do not match its manifest.
    """
    model = Published(config.model_directory)
    manifest, remarks = model.version(version, whole=True), {}
    integrity.require_whole(model.path_of(version), manifest["files"])
    try:
        _refuse_forgotten(
            manifest.get("dataset") or {},
            (manifest.get("lineage") or {}).get("base"),
            model.path_of(version),
            config.data.dataset,
        )
    except ForgottenRows:
        if not despite_forgotten:
            raise
        remarks["despite_forgotten"] = True
    while True:
        newest, now = model.newest()
        if now is not None and now["version"] == version:
            _write_pointer(model)
            return _result(model, version, now, changed=False)
        order = _order(now)
        back = version in order and order.index(version) < order.index(order[-1])
        action = "rollback" if back else "publish"
        if _append_entry(model, newest, _entry(model, version, now, action, note) | remarks):
            progress(f"current again: {model.path_of(version)}")
            return _result(model, version, now, changed=True)


def roll_back(
    config: Config,
    *,
    note: str | None = None,
    despite_forgotten: bool = False,
    progress: Progress = lambda line: None,
) -> dict:
    """Make the version current that was current before the present one was first published.

    Raises:
        UsageError: there is no such version.
    """
    model = Published(config.model_directory)
    order = _order(model.newest()[1])
    before = order[: order.index(order[-1])] if order else []
    if not before:
        raise UsageError(
            "there is no version to go back to",
            where=model.root,
            got=f"versions published so far: {', '.join(map(str, dict.fromkeys(order))) or 'none'}",
        )
    return republish(
        config, before[-1], note=note, despite_forgotten=despite_forgotten, progress=progress
    )


def _refuse_forgotten(dataset: dict, base: dict | None, where: str, root: str) -> None:
    """Refuse a model whose training rows were forgotten since, or that began from such a model.

    Args:
        dataset: {path, hash} of the version that the model was trained on.
        base: {source, init_from} that the model began from.
        where: the run or version.
        root: data.dataset, which may have moved since the run.
    Raises:
        ForgottenRows: training rows were forgotten.
    """
    marked = forgotten.of_dataset(dataset)
    if marked is None and storage.exists(root):
        marked = forgotten.load(root).versions.get(str(dataset.get("hash")))
    remedy = "train again on the dataset's newest version, and publish that run"
    got = f"dataset {dataset.get('path')}, marked by `howdah model forget` on {marked}"
    if marked is None:
        for path, manifest in _began_from(base):
            marked = forgotten.of_dataset(manifest.get("dataset") or {})
            if marked is not None:
                got = f"it began from {path}, whose dataset was marked on {marked}"
                remedy += "; begin from a model that never had these rows (model.base, and"
                remedy += " model.init_from left out once)"
                break
    if marked is not None:
        raise ForgottenRows(
            "the model was trained on rows that were forgotten", where=where, got=got, remedy=remedy
        )


def _began_from(base: dict | None) -> Iterator[tuple[str, dict]]:
    """Yield (path, manifest) of the existing published versions that a model began from.

    Those that these versions began from are included.
    """
    waiting, seen = [base or {}], set()
    while waiting:
        current = waiting.pop()
        for path in (current.get("source"), current.get("init_from")):
            if not isinstance(path, str) or path in seen:
                continue
            seen.add(path)
            if (manifest := manifest_of(path)) is not None:
                waiting.append((manifest.get("lineage") or {}).get("base") or {})
                yield path, manifest


# ---------------------------------------------------------------------------------- a version
def _version_of(
    model: Published,
    run: FinishedRun,
    progress: Progress = lambda line: None,
    *,
    below: float = math.inf,
) -> int | None:
    """Find the version with the run's weights and decision, if there is one that is whole.

    Args:
        below: only versions with lower numbers are looked at.
    """
    for number in (number for number in model.numbers() if number < below):
        try:
            manifest = model.version(number)
        except ModelError:  # its publisher has not finished
            continue
        if VersionIdentity.of(manifest) != run.identity:
            continue
        try:
            files = model.version(number, whole=True)["files"]
            integrity.require_whole(model.path_of(number), files)
        except ModelError as error:
            progress(f"version {number} is damaged ({error.where}): the run gets another one")
            continue
        return number
    return None


def _add_version(model: Published, run: FinishedRun, progress: Progress) -> int:
    """Copy the export to a new version; return its number."""
    staging = storage.join(model.root, f"staging-{secrets.token_hex(6)}")
    with commit.stage(staging) as staged:
        files = _copied(run.export, staging, progress)
        _check_weights(run, files)
        manifest = {
            "format_version": FORMAT_VERSION,
            **run.identity._asdict(),
            "run_name": run.info.get("run_name"),
            "run_directory": run.directory,
            "framework": run.info.get("framework"),
            "step": run.info.get("step"),
            "metrics": run.metrics(),
            "dataset": run.dataset,
            "files": files,
            "lineage": _lineage(run),
            "created": utc_now(),
            "by": user_and_host(),
        }
        storage.write_whole(storage.join(staging, MANIFEST), _json(manifest))
        number = _take_number(model, staged)
    commit.sweep(storage.list_dir(model.root), _is_stale)
    first = _version_of(model, run, below=number)
    if first is not None:
        # Two publishers had the same run: the first one's version stays.
        commit.retract(model.path_of(number), staging)
        return first
    return number


def _lineage(run: FinishedRun) -> dict:
    """Copy the model's lineage from run.json, since the run directory may be removed later."""
    last = (run.run.get("attempts") or [{}])[-1]
    kept = ("config_hash", "base", "source", "git", "versions", "mlflow_run_id", "finished")
    return {
        **{key: run.run.get(key) for key in (*kept, "hours")},
        **{key: last.get(key) for key in ("user", "host", "command", "submission")},
    }


def _take_number(model: Published, staged: commit.Staged) -> int:
    """Publish the staged version under the next number that no other publisher has."""
    number = max([0, *model.numbers()])
    while True:
        number += 1
        try:
            # S3 cannot rename a directory, so that only the claim gives publishers two numbers.
            claim = storage.join(model.root, "claims", str(number))
            storage.create_exclusive(claim, _json({"by": user_and_host(), "at": utc_now()}))
            staged.publish(model.path_of(number))
        except AlreadyExists:
            continue
        return number


def _copied(source: str, target: str, progress: Progress) -> dict[str, dict]:
    """Copy a directory's files and read the copies; return {name: {bytes, sha256}}."""
    files, entries = {}, list(_entries(source))
    size = sum(entry.size for _, entry in entries)
    progress(f"copying the export, {len(entries)} files, {size / 2**20:,.0f} MiB")
    for name, entry in entries:
        if name == MANIFEST:
            raise _unexpected(source, name)
        if len(entries) > 1 and entry.size >= _LONG_BYTES:
            progress(f"copying {name}, {entry.size / 2**20:,.0f} MiB")
        sent = _send(entry.path, storage.join(target, name))
        back = integrity.digest(storage.join(target, name))
        if sent != back:
            raise ModelError(
                "a copied file differs from the file that was sent",
                where=storage.join(target, name),
                expected=f"{sent['bytes']:,} bytes, sha256 {sent['sha256']}",
                got=f"{back['bytes']:,} bytes, sha256 {back['sha256']}",
                remedy="publish again; if this repeats, the storage is damaged",
            )
        files[name] = sent
    return files


def _entries(directory: str, below: str = "") -> Iterator[tuple[str, Entry]]:
    """Yield (name below `directory`, entry) of every file of an export."""
    for entry in storage.list_dir(directory):
        name = f"{below}{entry.name}"
        if not entry.is_dir:
            yield name, entry
        elif below or entry.name in EXPORT_FOLDERS:
            yield from _entries(entry.path, f"{name}/")
        else:
            raise _unexpected(directory, name)


def _unexpected(directory: str, name: str) -> ModelError:
    return ModelError("the export has a file that does not belong there", where=directory, got=name)


def _send(source: str, target: str) -> dict:
    """Copy a file in bounded memory; return {bytes, sha256} of the bytes read."""
    read = {}

    def fill(file: BinaryIO) -> None:
        digest, size = hashlib.sha256(), 0
        with storage.open_read(source) as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
        read.update(bytes=size, sha256=digest.hexdigest())

    storage.write_stream(target, fill, size=storage.size(source))
    return read


def _check_weights(run: FinishedRun, files: dict[str, dict]) -> None:
    got = {name: file["sha256"] for name, file in files.items() if name.endswith(".safetensors")}
    if run.weights not in got.values():
        raise ModelError(
            "the export's weights do not match its howdah.json",
            where=run.export,
            expected=f"sha256 {run.weights}",
            got="; ".join(f"{name}: {value}" for name, value in got.items()) or "no weights",
            remedy="`howdah export` writes the run's export again",
        )


def _is_stale(entry: storage.Entry) -> bool:
    """Return whether it is the staging directory of a publisher killed more than a day ago."""
    if not (entry.is_dir and _STAGING.fullmatch(entry.name)):
        return False
    try:
        times = [file.modified for file in storage.list_dir(entry.path)]
    except NotFound:  # its publisher has just finished
        return False
    return bool(times) and max(times) < time.time() - _STALE_SECONDS


# ------------------------------------------------------------------------------ what is current
def _order(entry: dict | None) -> list[int]:
    """List the versions that were current up to an entry of the history, in order."""
    return [] if entry is None else entry["order"]


def _entry(
    model: Published, version: int, before: dict | None, action: str, note: str | None
) -> dict:
    manifest = model.version(version, whole=True)
    copied = ("run_name", "run_directory", "framework", "step", "metrics", "dataset")
    return {
        "version": version,
        "path": f"v={version}",
        "action": action,
        "published": utc_now(),
        "by": user_and_host(),
        "note": note,
        "order": [*_order(before), version],
        **{name: manifest.get(name) for name in (*VersionIdentity._fields, *copied)},
    }


def _append_entry(model: Published, newest: int, entry: dict) -> bool:
    """Add the entry after number `newest` of the history; False if another publisher was faster."""
    try:
        storage.create_exclusive(model.entry_path(newest + 1), _json(entry))
    except AlreadyExists:
        return False
    _write_pointer(model)
    return True


def _write_pointer(model: Published) -> None:
    """Copy the newest entry of the history to current.json; safe with other publishers at once."""
    while True:
        newest = model.entries()[-1]
        data = storage.read_bytes(model.entry_path(newest))
        try:
            pointer = storage.read_bytes(model.pointer)
        except NotFound:
            pointer = None
        if pointer != data:
            storage.write_whole(model.pointer, data)
        if model.entries()[-1] == newest:
            return


def _result(model: Published, version: int, before: dict | None, *, changed: bool) -> dict:
    """Return the result of a command; `before` is the newest entry before it."""
    manifest, now = model.version(version, whole=True), model.current() or {}
    names = ("run_id", "run_directory", "framework", "step", "metrics")
    return {
        "name": storage.name(model.root),
        "version": version,
        "path": model.path_of(version),
        "pointer": model.pointer,
        "changed": changed,
        "current": now.get("version"),
        "previous": before["version"] if before is not None and changed else None,
        **{name: manifest.get(name) for name in names},
        "gate": now.get("gate") if now.get("version") == version else None,
    }


def _json(value: dict) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
