"""MLflow's registry follows what is published: versions, and which of them is current.

The published directory decides. After each `howdah publish` the registry gets the version, and the
alias `champion` names the current one. If MLflow does not answer, the model is published all the
same, and `howdah model register` completes it later.

`<model>/mlflow.json` maps versions to MLflow's. If a user has moved the alias in MLflow, nothing is
published: the next command puts it back.
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

CHAMPION = "champion"

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

    The current version and all that were published since the first one in this registry are
    registered.

    Returns:
        {name, uri, versions: {version: MLflow's}, added: versions, champion}.
    Raises:
        ClusterError: the registry refuses, or does not answer.
        ModelError: nothing is published.
        UsageError: MLflow could not load the current version.
    """
    model, uri, name = Published(config.model_directory), _uri(config), name_of(config)
    record = _Record(model.root, uri, name)
    added, champion, current = [], None, _current(model)
    while champion != current:
        champion = current
        for number in _versions_to_register(model, champion, record):
            if _register(config, model, number, record, say):
                added.append(number)
        with mlflow_registry.opened(uri) as (_, client):
            _set_champion(client, name, record.versions[str(champion)])
        # Another publisher may have been faster in between: its version counts.
        current = _current(model)
    return {
        "name": name, "uri": redact.text(uri), "versions": record.versions, "added": added,
        "champion": record.versions[str(champion)],
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

    def add(self, number: int, theirs: int) -> None:
        """Record a version that is in the registry."""
        noted = {**self._here, "version": theirs}
        if self._values["versions"].get(str(number)) != noted:
            self._values["versions"][str(number)] = noted
            storage.write_whole(self._path, (json.dumps(self._values, indent=1) + "\n").encode())


def _current(model: Published) -> int:
    current = model.current()
    if current is None:
        raise ModelError(
            "nothing is published yet", where=model.root, remedy="run `howdah publish` first"
        )
    return current["version"]


def _versions_to_register(model: Published, current: int, record: _Record) -> list[int]:
    """List the versions to register.

    The current one is always listed, since only MLflow knows what it has; it adds none twice. Older
    ones that MLflow could not load are left out.
    """
    first = min(map(int, record.versions), default=None)
    since = {n for n in model.versions() if first is not None and n >= first} - {current}
    missing = {n for n in since if str(n) not in record.versions and _is_loadable(model, n)}
    return sorted({current, *missing})


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


def _set_champion(client: Any, name: str, version: int) -> None:
    if str(client.get_registered_model(name).aliases.get(CHAMPION)) != str(version):
        client.set_registered_model_alias(name, CHAMPION, str(version))


def _uri(config: Config) -> str:
    if config.tracking.mlflow is None:
        raise ClusterError(
            "no MLflow registry is configured",
            where="tracking.mlflow.uri",
            expected="the server's URI",
        )
    return config.tracking.mlflow.uri
