"""MLflow's registry follows what is published: versions, and which of them is current.

The published directory decides. After each `howdah publish` the registry gets the version, and the
aliases `champion` (the current version) and `challenger` (the one that is tried). If MLflow does
not answer, the model is published all the same, and `howdah model register` completes it later.

`<model>/mlflow.json` maps versions to MLflow's. An alias that a user has moved in MLflow publishes
nothing: the next command puts it back.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from howdah import redact, storage
from howdah.config.model import Config
from howdah.errors import ClusterError, HowdahError, ModelError, NotFound, UsageError
from howdah.models.registry import MLFLOW, Published
from howdah.models.version import open_version
from howdah.serving.deployment import mlflow_registry
from howdah.storage.shapes import COUNT, TEXT, Each, Fields

CHAMPION, CHALLENGER = "champion", "challenger"

Say = Callable[[str], None]


def after_publish(config: Config, say: Say) -> dict[str, Any]:
    """Call `sync_registry` for a model that is published already; an error becomes a warning.

    Returns:
        {state: registered, ...} as `sync_registry`, or {state: behind, warning}.
    """
    remedy = "run `howdah model register`"
    try:
        return {"state": "registered", **sync_registry(config, say)}
    except HowdahError as error:
        warning = f"{error.what}: {error.got}" if error.got else error.what
        if isinstance(error, UsageError) and error.remedy:  # trying again would change nothing
            remedy = error.remedy
    except Exception as error:  # noqa: BLE001 - each artifact store of MLflow raises its own
        first = str(error).splitlines()[0] if str(error) else ""
        warning = f"{type(error).__name__}: {first}"
    warning = redact.text(warning)
    say(f"warning: published, but MLflow's registry is behind ({warning}); {remedy}")
    return {"state": "behind", "warning": warning}


def sync_registry(config: Config, say: Say) -> dict[str, Any]:
    """Bring the registry to what is published; a second call changes nothing.

    The current version, the one that is tried, and all that were published since the first one in
    this registry are registered.

    Returns:
        {name, uri, versions: {version: MLflow's}, added: versions, champion, challenger}.
    Raises:
        ClusterError: the registry refuses, or does not answer.
        ModelError: nothing is published.
        UsageError: MLflow could not load the current version or the one that is tried.
    """
    model, uri, name = Published(config.model_directory), _uri(config), name_of(config)
    if model.current() is None and model.challenger() is None:
        raise ModelError(
            "nothing is published yet", where=model.root, remedy="run `howdah publish` first"
        )
    record = _Record(model.root, uri, name)
    added = []
    for number in _versions_to_register(model, record):
        if _register(config, model, number, record, say):
            added.append(number)
    with mlflow_registry.opened(uri) as (_, client):
        while True:
            current = (model.current() or {}).get("version")
            tried = model.challenger()
            _set_alias(client, name, CHAMPION, record.of(current))
            _set_alias(client, name, CHALLENGER, record.of(tried))
            # Another publisher may have been faster in between: its version counts.
            if (model.current() or {}).get("version") == current and model.challenger() == tried:
                break
            for number in _versions_to_register(model, record):
                _register(config, model, number, record, say)
    return {
        "name": name, "uri": redact.text(uri), "versions": record.versions, "added": added,
        "champion": record.of(current), "challenger": record.of(tried),
    }  # fmt: skip


def name_of(config: Config) -> str:
    """Return the name of the registered model."""
    return config.publish.name or config.run.name


_RECORD = Fields(
    {
        **dict.fromkeys(("uri", "name"), TEXT),
        "versions": Each(Fields({"version": COUNT}, needed=("version",))),
    },
    needed=("versions",),
)


class _Record:
    """mlflow.json: {uri, name, versions: {version: {uri, name, version}}}."""

    def __init__(self, root: str, uri: str, name: str) -> None:
        self._path = storage.join(root, MLFLOW)
        self._here = {"uri": redact.text(uri), "name": name}
        try:
            stored = storage.read_object(self._path, _RECORD)
        except NotFound:
            stored = {}
        same = {k: stored.get(k) for k in self._here} == self._here
        # Another registry, or another name in it, has none of the versions in this record.
        self._values: dict[str, Any] = stored if same else {**self._here, "versions": {}}

    @property
    def versions(self) -> dict[str, int]:
        """{version: MLflow's version}."""
        return {n: one["version"] for n, one in self._values["versions"].items()}

    def of(self, number: int | None) -> int | None:
        """Return MLflow's number of a version."""
        return self.versions.get(str(number))

    def add(self, number: int, theirs: int) -> None:
        """Record a version that is in the registry."""
        noted = {**self._here, "version": theirs}
        if self._values["versions"].get(str(number)) != noted:
            self._values["versions"][str(number)] = noted
            storage.write_whole(self._path, (json.dumps(self._values, indent=1) + "\n").encode())


def _versions_to_register(model: Published, record: _Record) -> list[int]:
    """List the versions to register.

    The current one and the one that is tried are always listed, since only MLflow knows what it
    has; it adds none twice. Older ones that MLflow could not load are left out.
    """
    first = min(map(int, record.versions), default=None)
    now = {(model.current() or {}).get("version"), model.challenger()} - {None}
    since = {n for n in model.versions() if first is not None and n >= first}
    missing = {n for n in since - now if record.of(n) is None and _is_loadable(model, n)}
    return sorted(now | missing)


def _is_loadable(model: Published, number: int) -> bool:
    try:
        mlflow_registry.require_loadable(open_version(model.path_of(number)))
    except UsageError:
        return False
    return True


def _register(config: Config, model: Published, number: int, record: _Record, say: Say) -> bool:
    made = mlflow_registry.register(
        open_version(model.path_of(number)),
        _uri(config),
        name=name_of(config),
        experiment=config.tracking.mlflow.experiment,
        mode=config.publish.mlflow.mode,
        tags=_tags(model, number),
        say=say,
    )
    record.add(number, made["version"])
    return made["changed"]


def _tags(model: Published, number: int) -> dict[str, Any]:
    """Return a version's tags, from the history."""
    entries = [one for one in model.history() if one["version"] == number]
    entry = entries[-1] if entries else {}
    judged = next((one["gate"] for one in reversed(entries) if one.get("gate")), None)
    kept = model.version(number).get("lineage") or {}
    return {
        "gate": None if judged is None else "passed" if judged["passed"] else "missed",
        "approved_by": entry.get("note") or entry.get("by"),
        "mlflow_run_id": kept.get("mlflow_run_id"),
    }


def _set_alias(client: Any, name: str, alias: str, version: int | None) -> None:
    aliases = client.get_registered_model(name).aliases
    current = int(aliases[alias]) if alias in aliases else None
    if version is None:
        if current is not None:
            client.delete_registered_model_alias(name, alias)
    elif current != version:
        client.set_registered_model_alias(name, alias, str(version))


def _uri(config: Config) -> str:
    if config.tracking.mlflow is None:
        raise ClusterError(
            "no MLflow registry is configured",
            where="tracking.mlflow.uri",
            expected="the server's URI",
        )
    return config.tracking.mlflow.uri
