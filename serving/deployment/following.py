"""MLflow's registry follows what is published: versions, and which of them is current.

The published directory decides. After each `howdah publish` the registry gets the version and the
alias `champion` of the one that is current, `challenger` of the one that is tried; where MLflow
does not answer, the model is published all the same, and `howdah model register` completes it
later.

`<model>/mlflow.json` says which version is which in MLflow. An alias that a user has moved there
publishes nothing: the next command puts it back.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from howdah import redact, storage
from howdah.config.model import Config
from howdah.errors import ClusterError, HowdahError, ModelError, NotFound
from howdah.models.registry import MLFLOW, Published
from howdah.models.version import open_version
from howdah.serving.deployment import mlflow_registry
from howdah.storage.shapes import COUNT, TEXT, Each, Fields

CHAMPION, CHALLENGER = "champion", "challenger"

Say = Callable[[str], None]


def after_publish(config: Config, say: Say) -> dict[str, Any]:
    """`complete`, for a model that is published already: what goes wrong is a warning.

    Returns:
        {state: registered, ...} as `complete`, or {state: behind, warning}.
    """
    try:
        return {"state": "registered", **complete(config, say)}
    except HowdahError as error:
        warning = f"{error.what}: {error.got}" if error.got else error.what
    except Exception as error:  # noqa: BLE001 - of whichever artifact store MLflow has
        first = str(error).splitlines()[0] if str(error) else ""
        warning = f"{type(error).__name__}: {first}"
    warning = redact.text(warning)
    say(
        f"warning: published, but MLflow's registry is behind ({warning}); `howdah model register`"
        " helps"
    )
    return {"state": "behind", "warning": warning}


def complete(config: Config, say: Say) -> dict[str, Any]:
    """Bring the registry to what is published; again, it changes nothing.

    Registered are the current version, the one that is tried, and all that were published since the
    first one in this registry.

    Returns:
        {name, uri, versions: {version: MLflow's}, added: versions, champion, challenger}.
    Raises:
        ClusterError: the registry refuses, or does not answer.
        ModelError: nothing is published.
    """
    model, uri, name = Published(config.model_directory), _uri(config), name_of(config)
    if model.current() is None and model.challenger() is None:
        raise ModelError(
            "nothing is published yet",
            where=model.root,
            remedy="`howdah publish` publishes a finished run",
        )
    known = _Record(model.root, uri, name)
    added = []
    for number in _wanted(model, known):
        if _register(config, model, number, known, say):
            added.append(number)
    with mlflow_registry.opened(uri) as (_, client):
        while True:
            current = (model.current() or {}).get("version")
            tried = model.challenger()
            _set_alias(client, name, CHAMPION, known.of(current))
            _set_alias(client, name, CHALLENGER, known.of(tried))
            # Another publisher may have been faster in between: its version counts.
            if (model.current() or {}).get("version") == current and model.challenger() == tried:
                break
            for number in _wanted(model, known):
                _register(config, model, number, known, say)
    return {
        "name": name, "uri": redact.text(uri), "versions": known.versions, "added": added,
        "champion": known.of(current), "challenger": known.of(tried),
    }  # fmt: skip


def name_of(config: Config) -> str:
    """Of the registered model."""
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
            found = storage.read_object(self._path, _RECORD)
        except NotFound:
            found = {}
        same = {k: found.get(k) for k in self._here} == self._here
        # Another registry, or another name in it: nothing is known there.
        self._values: dict[str, Any] = found if same else {**self._here, "versions": {}}

    @property
    def versions(self) -> dict[str, int]:
        """{version: MLflow's}"""
        return {n: one["version"] for n, one in self._values["versions"].items()}

    def of(self, number: int | None) -> int | None:
        """MLflow's number of a version."""
        return self.versions.get(str(number))

    def add(self, number: int, theirs: int) -> None:
        """Note a version that is in the registry."""
        noted = {**self._here, "version": theirs}
        if self._values["versions"].get(str(number)) != noted:
            self._values["versions"][str(number)] = noted
            storage.write_whole(self._path, (json.dumps(self._values, indent=1) + "\n").encode())


def _wanted(model: Published, known: _Record) -> list[int]:
    """Versions that the registry is to have, those that it is known to have too: MLflow decides
    what it has, and adds none twice."""
    first = min(map(int, known.versions), default=None)
    now = {(model.current() or {}).get("version"), model.challenger()} - {None}
    since = {n for n in model.versions() if first is not None and n >= first}
    return sorted(now | {n for n in since if known.of(n) is None})


def _register(config: Config, model: Published, number: int, known: _Record, say: Say) -> bool:
    made = mlflow_registry.register(
        open_version(model.path_of(number)),
        _uri(config),
        name=name_of(config),
        experiment=config.tracking.mlflow.experiment,
        mode=config.publish.mlflow.mode,
        tags=_tags(model, number),
        say=say,
    )
    known.add(number, made["version"])
    return made["changed"]


def _tags(model: Published, number: int) -> dict[str, Any]:
    """What the history says of a version."""
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
    there = _alias(client, name, alias)
    if version is None:
        if there is not None:
            client.delete_registered_model_alias(name, alias)
    elif there != version:
        client.set_registered_model_alias(name, alias, str(version))


def _alias(client: Any, name: str, alias: str) -> int | None:
    aliases = client.get_registered_model(name).aliases
    return int(aliases[alias]) if alias in aliases else None


def _uri(config: Config) -> str:
    if config.tracking.mlflow is None:
        raise ClusterError(
            "there is no registry", where="tracking.mlflow.uri", expected="the server's URI"
        )
    return config.tracking.mlflow.uri
