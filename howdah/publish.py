"""Publish a run's export as the next version of a model, or make an older version current again.

A version is copied under a name that nobody reads, read back and compared, and appears by one
rename. What is current is decided by the history, whose entries are created exclusively: of two
publishers the second sees the first one's entry, and judges its model against that. current.json is
the newest entry again; whoever writes it looks again whether it still is. A publisher killed at any
point leaves a version that is whole or invisible, and the same command completes what it began.
"""

from __future__ import annotations

import datetime
import getpass
import hashlib
import json
import re
import secrets
import socket
import time
from collections.abc import Callable
from typing import BinaryIO

from howdah import storage
from howdah.config_model import Config
from howdah.errors import AlreadyExists, ModelError, NotFound, UsageError
from howdah.gate import Evaluate, Run, finished_run, judge
from howdah.models import MANIFEST, Published

__all__ = ["publish", "republish", "roll_back"]

FORMAT_VERSION = 1
_CHUNK = 8 * 2**20
_STAGING = re.compile(r"staging-[0-9a-f]{12}")
_STALE_SECONDS = 24 * 3600.0

Progress = Callable[[str], None]


def publish(
    config: Config,
    evaluate: Evaluate,
    *,
    note: str | None = None,
    progress: Progress = lambda line: None,
) -> dict:
    """Publish the export of the configuration's run, if it passes the gate.

    The same run again changes nothing, also after another run was published or it was rolled back.

    Args:
        evaluate: what the gate may ask for (gate.judge).
        note: kept in the history, e.g. who approved it.
        progress: takes a line.
    Returns:
        {name, version, path, pointer, changed, run_id, run_directory, framework, step, metrics,
        gate, previous}.
    Raises:
        CheckFailed: the gate's bounds are missed.
        ModelError: no finished run, or its export is damaged.
    """
    run = finished_run(config.run.directory)
    place = Published(config.model_directory)
    version = _version_of(place, run)
    if version is not None and version in _order(place.newest()[1]):
        _point(place)
        progress(f"run {run.run_id} is version {version} already")
        return _told(place, version, None, changed=False)
    judge(config, evaluate, run=run).require("gate")
    if version is None:
        version = _put(place, run, progress)
    while True:
        known, now = place.newest()
        if version in _order(now):  # another publisher of this run was faster
            return _told(place, version, now, changed=False)
        # Another run may have become current while this one was copied.
        verdict = judge(config, evaluate, run=run)
        verdict.require("gate")
        entry = _entry(place, version, now, "publish", note) | {"gate": verdict.as_dict()}
        if _announce(place, known, entry):
            progress(f"published: {place.path_of(version)}")
            return _told(place, version, now, changed=True)


def republish(
    config: Config,
    version: int,
    *,
    note: str | None = None,
    progress: Progress = lambda line: None,
) -> dict:
    """Make a version that was published before current again; the gate is not asked.

    Raises:
        ModelError: no such version, or its files are not what its manifest says.
    """
    place = Published(config.model_directory)
    _verify(place, version)
    while True:
        known, now = place.newest()
        if now is not None and now["version"] == version:
            _point(place)
            return _told(place, version, now, changed=False)
        if _announce(place, known, _entry(place, version, now, "rollback", note)):
            progress(f"current again: {place.path_of(version)}")
            return _told(place, version, now, changed=True)


def roll_back(
    config: Config, *, note: str | None = None, progress: Progress = lambda line: None
) -> dict:
    """Make that version current which was so before the present one was first published.

    Raises:
        UsageError: there is none.
    """
    place = Published(config.model_directory)
    order = _order(place.newest()[1])
    before = order[: order.index(order[-1])] if order else []
    if not before:
        raise UsageError(
            "there is no version to go back to",
            where=place.root,
            got=f"versions published so far: {', '.join(map(str, dict.fromkeys(order))) or 'none'}",
        )
    return republish(config, before[-1], note=note, progress=progress)


# ---------------------------------------------------------------------------------- a version
def _version_of(place: Published, run: Run) -> int | None:
    """The version that holds the run's weights, if there is one."""
    for number in place.numbers():
        try:
            manifest = place.version(number)
        except ModelError:  # still being put there
            continue
        if (manifest["run_id"], manifest["weights_sha256"]) == (run.run_id, run.weights):
            return number
    return None


def _put(place: Published, run: Run, progress: Progress) -> int:
    """Copy the export to a version of its own; its number."""
    staging = storage.join(place.root, f"staging-{secrets.token_hex(6)}")
    try:
        files = _copied(run.export, staging, progress)
        _check_weights(run, files)
        manifest = {
            "format_version": FORMAT_VERSION,
            "run_id": run.run_id,
            "run_name": run.info.get("run_name"),
            "run_directory": run.directory,
            "framework": run.info.get("framework"),
            "step": run.info.get("step"),
            "metrics": run.metrics(),
            "dataset": run.dataset,
            "weights_sha256": run.weights,
            "files": files,
            "created": _now(),
            "by": _who(),
        }
        storage.write_whole(storage.join(staging, MANIFEST), _json(manifest))
        number = _take_number(place, staging)
    finally:
        storage.remove(staging, recursive=True)
    _sweep(place)
    first = _version_of(place, run)
    if first is not None and first < number:  # two publishers of one run: the first one's counts
        storage.rename_dir(place.path_of(number), staging)
        storage.remove(staging, recursive=True)
        return first
    return number


def _take_number(place: Published, staging: str) -> int:
    """Give what was staged the next number; never the one that another publisher takes."""
    number = max([0, *place.numbers()])
    while True:
        number += 1
        try:
            # Where directories cannot be renamed (S3), only the claim tells two publishers apart.
            claim = storage.join(place.root, "claims", str(number))
            storage.create_exclusive(claim, _json({"by": _who(), "at": _now()}))
            storage.rename_dir(staging, place.path_of(number))
        except AlreadyExists:
            continue
        return number


def _copied(source: str, target: str, progress: Progress) -> dict[str, dict]:
    """Copy a directory's files and read them back: {name: {bytes, sha256}}."""
    files = {}
    for entry in storage.list_dir(source):
        if entry.is_dir or entry.name == MANIFEST:
            raise ModelError(
                "the export holds what does not belong there", where=source, got=entry.name
            )
        progress(f"copying {entry.name}, {entry.size / 2**20:,.1f} MiB")
        sent = _send(entry.path, storage.join(target, entry.name))
        back = _digest(storage.join(target, entry.name))
        if sent != back:
            raise ModelError(
                "a copied file is not what was sent",
                where=storage.join(target, entry.name),
                expected=f"{sent['bytes']:,} bytes, sha256 {sent['sha256']}",
                got=f"{back['bytes']:,} bytes, sha256 {back['sha256']}",
                remedy="publish again; if it stays so, the storage is not sound",
            )
        files[entry.name] = sent
    return files


def _send(source: str, target: str) -> dict:
    """Copy a file in bounded memory; what was read: {bytes, sha256}."""
    read = {}

    def fill(file: BinaryIO) -> None:
        digest, size = hashlib.sha256(), 0
        with storage.open_read(source) as given:
            while chunk := given.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
        read.update(bytes=size, sha256=digest.hexdigest())

    storage.write_stream(target, fill, size=storage.size(source))
    return read


def _digest(path: str) -> dict:
    digest, size = hashlib.sha256(), 0
    with storage.open_read(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            size += len(chunk)
    return {"bytes": size, "sha256": digest.hexdigest()}


def _check_weights(run: Run, files: dict[str, dict]) -> None:
    got = {name: file["sha256"] for name, file in files.items() if name.endswith(".safetensors")}
    if run.weights not in got.values():
        raise ModelError(
            "the export's weights are not those that it says it has",
            where=run.export,
            expected=f"sha256 {run.weights}",
            got="; ".join(f"{name}: {value}" for name, value in got.items()) or "no weights",
            remedy="`howdah export` writes the run's export again",
        )


def _verify(place: Published, version: int) -> None:
    """Raises ModelError if a version's files are not what its manifest says."""
    for name, file in place.version(version)["files"].items():
        path = storage.join(place.path_of(version), name)
        try:
            got = _digest(path)
        except NotFound:
            got = None
        if got != file:
            raise ModelError(
                "a published file is damaged",
                where=path,
                expected=f"{file['bytes']:,} bytes, sha256 {file['sha256']}",
                got=f"{got['bytes']:,} bytes, sha256 {got['sha256']}" if got else "nothing",
                remedy="publish the run again, or roll back to another version",
            )


def _sweep(place: Published) -> None:
    """Remove what publishers that were killed more than a day ago had begun to copy."""
    for entry in storage.list_dir(place.root):
        if not (entry.is_dir and _STAGING.fullmatch(entry.name)):
            continue
        try:
            times = [file.modified for file in storage.list_dir(entry.path)]
        except NotFound:  # another publisher's, who has just finished
            continue
        if times and max(times) < time.time() - _STALE_SECONDS:
            storage.remove(entry.path, recursive=True)


# ------------------------------------------------------------------------------ what is current
def _order(entry: dict | None) -> list[int]:
    """The versions that were current, in their order, up to an entry of the history."""
    return [] if entry is None else entry["order"]


def _entry(
    place: Published, version: int, before: dict | None, action: str, note: str | None
) -> dict:
    manifest = place.version(version)
    copied = ("run_id", "run_name", "run_directory", "framework", "step", "metrics", "dataset")
    return {
        "version": version,
        "path": f"v={version}",
        "action": action,
        "published": _now(),
        "by": _who(),
        "note": note,
        "order": [*_order(before), version],
        **{name: manifest.get(name) for name in (*copied, "weights_sha256")},
    }


def _announce(place: Published, known: int, entry: dict) -> bool:
    """Add to the history, unless someone was faster since `known` entries were read."""
    try:
        storage.create_exclusive(place.entry_path(known + 1), _json(entry))
    except AlreadyExists:
        return False
    _point(place)
    return True


def _point(place: Published) -> None:
    """Make current.json the newest entry of the history, whoever else does the same now."""
    while True:
        newest = place.entries()[-1]
        data = storage.read_bytes(place.entry_path(newest))
        try:
            there = storage.read_bytes(place.pointer)
        except NotFound:
            there = None
        if there != data:
            storage.write_whole(place.pointer, data)
        if place.entries()[-1] == newest:
            return


def _told(place: Published, version: int, before: dict | None, *, changed: bool) -> dict:
    """The result of a command; `before` is the history's newest entry as it was."""
    manifest, now = place.version(version), place.current() or {}
    names = ("run_id", "run_directory", "framework", "step", "metrics")
    return {
        "name": storage.name(place.root),
        "version": version,
        "path": place.path_of(version),
        "pointer": place.pointer,
        "changed": changed,
        "current": now.get("version"),
        "previous": before["version"] if before is not None and changed else None,
        **{name: manifest.get(name) for name in names},
        "gate": now.get("gate") if now.get("version") == version else None,
    }


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _json(value: dict) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode()
