"""Fetch a base model's files by directory, remote directory or hub name.

ETL (tokenizer) and training (configuration, weights) name the files that they need by pattern; the
result is always a directory on this machine.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
import re
from collections.abc import Sequence
from typing import Any

from howdah import storage
from howdah.core import activity
from howdah.core.cache import cache_root
from howdah.data.family import family_of, hub_config
from howdah.data.manifest import content_hash
from howdah.errors import ModelError, NotFound
from howdah.storage import commit

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HUB_TIMEOUT_SECONDS = 20
_HUB_SECONDS = 3600.0
"""Time limit of a download; one that stalls ends earlier (HF_HUB_DOWNLOAD_TIMEOUT, 10 s a read)."""


def fetch(
    base: str,
    *,
    revision: str | None = None,
    patterns: Sequence[str],
    cache_dir: str | None = None,
) -> str:
    """Bring a model's files to this machine; the directory that holds them.

    Args:
        base: a local directory (returned as it is), a directory on another storage
            (`hdfs://...`, copied to the cache, and again when its files change), or a hub name
            (`distilbert-base-uncased`, `org/name`; HF_HUB_OFFLINE and HF_HOME are honoured).
        revision: branch, tag or commit of a hub name; refused for directories.
        patterns: file name patterns of the files needed, e.g. `["config.json", "*.safetensors"]`.
        cache_dir: for copies of remote directories; none: `cache_root()`/models.

    Raises:
        ModelError: it does not exist, is not a directory, or none of the patterns matches.
    """
    if storage.is_local(base):
        local = storage.local_path(base)
        if os.path.isdir(local):
            _refuse_revision(base, revision)
            _require_match(base, [entry.name for entry in storage.list_dir(local)], patterns)
            return local
        if os.path.exists(local):
            raise ModelError(
                "the base model is a file, not a directory",
                where=base,
                expected="the directory that holds config.json, the weights and the tokenizer",
                remedy="give the file's directory as model.base",
            )
        if on_hub(base):
            return _from_hub(base, revision, patterns)
        raise ModelError(
            "the base model's directory does not exist",
            where=base,
            expected="a directory, an hdfs:// path or a hub name such as distilbert-base-uncased",
            remedy="set model.base to the path of the model",
        )
    _refuse_revision(base, revision)
    return _from_storage(base, patterns, cache_dir or os.path.join(cache_root(), "models"))


def read(base: str, names: Sequence[str], revision: str | None) -> dict[str, bytes]:
    """{name: content} of those of these files that the model of `fetch` has."""
    directory = fetch(base, revision=revision, patterns=names)
    paths = {name: os.path.join(directory, name) for name in names}
    return {name: storage.read_bytes(at) for name, at in paths.items() if os.path.isfile(at)}


def on_hub(base: str) -> bool:
    """True for a name of the hub that is not a directory here."""
    return _HUB_NAME.fullmatch(base) is not None and not os.path.exists(base)


def _refuse_revision(base: str, revision: str | None) -> None:
    if revision is not None:
        raise ModelError(
            "a directory has no revisions",
            where=f"model.base {base}",
            got=f"model.revision {revision}",
            remedy="leave model.revision out, or give a hub name as model.base",
        )


def _matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    return sorted(n for n in names if any(fnmatch.fnmatchcase(n, p) for p in patterns))


def _require_match(base: str, names: Sequence[str], patterns: Sequence[str]) -> None:
    if not _matching(names, patterns):
        raise ModelError(
            "the base model's directory holds none of the files needed",
            where=base,
            expected="one of " + ", ".join(patterns),
            got=", ".join(sorted(names)[:10]) or "an empty directory",
            remedy="give a model directory as Hugging Face's save_pretrained writes it",
        )


def _from_storage(base: str, patterns: Sequence[str], cache_dir: str) -> str:
    try:
        entries = {e.name: e for e in storage.list_dir(base) if not e.is_dir}
    except NotFound as error:
        raise ModelError(
            "the base model's directory does not exist",
            where=base,
            remedy="set model.base to the path of the model",
        ) from error
    _require_match(base, list(entries), patterns)
    chosen = [entries[name] for name in _matching(list(entries), patterns)]
    # The key changes with any remote file, so a cached copy is never stale and never mixed.
    state = content_hash([base, [[e.name, e.size, str(e.modified)] for e in chosen]])

    def copy(fresh: str) -> None:
        storage.make_dirs(fresh, mode=0o700)  # the storage may hide them from other users too
        for entry in chosen:
            storage.download(entry.path, os.path.join(fresh, entry.name))

    return commit.cached(os.path.join(cache_dir, state), copy)


def _from_hub(name: str, revision: str | None, patterns: Sequence[str]) -> str:
    import requests
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    errors: list[type[Exception]] = [requests.RequestException, HFValidationError, OSError]
    with contextlib.suppress(ImportError):  # what huggingface_hub raises from version 1.0 on
        import httpx

        errors.append(httpx.HTTPError)
    nearby = f"(there is no directory {os.path.abspath(name)} either)"
    try:
        with activity.current().at_most(_HUB_SECONDS):
            local = snapshot_download(
                name,
                revision=revision,
                allow_patterns=list(patterns),
                etag_timeout=_HUB_TIMEOUT_SECONDS,
            )
    except tuple(errors) as error:
        answered = isinstance(error, HfHubHTTPError | HFValidationError)
        if answered and not isinstance(error, LocalEntryNotFoundError):
            what = f"the hub does not give {name} {nearby}"
            remedy = "check the name and the revision; a private model needs HF_TOKEN"
        else:
            what = f"the hub cannot be reached and {name} is not in its local cache {nearby}"
            remedy = "give a model directory as model.base, or fetch the model once on a machine"
            remedy += " with a network and copy it here"
        raise ModelError(
            what,
            where=f"model.base {name}" + (f", revision {revision}" if revision else ""),
            got=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}",
            remedy=remedy,
        ) from error
    _require_match(name, os.listdir(local), patterns)
    return local


def base_config(base: str) -> dict[str, Any] | None:
    """The base model's config.json with defaults; None: it is on the hub and not known.

    Raises:
        ModelError: its model family is not known.
    """
    if "://" in base or os.path.isdir(storage.local_path(base)):
        where = storage.join(base, "config.json")
        fields = storage.read_object(where, kind=ModelError)
        family = family_of(fields, where=where)
        return family.complete({key: value for key, value in fields.items() if value is not None})
    return hub_config(base)
