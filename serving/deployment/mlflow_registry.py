"""`howdah model register`: a published version or an export, registered as a version in MLflow.

The model is a pyfunc from code: MLflow keeps pyfunc_model.py and the export's files, or a reference
to the published version, but never a pickle.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, assert_never

from howdah import __version__, redact
from howdah.data import modelfiles
from howdah.errors import ClusterError, ModelError, UsageError
from howdah.models import integrity
from howdah.models.opened.opened import EXPORT_PATTERNS
from howdah.models.registry import VersionIdentity
from howdah.models.version import Version, require_kind, require_one_label
from howdah.serving.deployment import references

Mode = Literal["reference", "full"]

_ALIAS = re.compile(r"[A-Za-z0-9_-]{1,255}")
_RESERVED = re.compile(r"(?i)latest|v[0-9]+")
_NAME = re.compile(r"(?!\.\.?$)[^/:'\"\\]{1,250}")
_CARD = "README.md"
_TAG = "howdah."
"""Beginning of the names of tags."""


def register(
    variant: Version,
    uri: str,
    *,
    name: str,
    experiment: str,
    alias: str | None = None,
    mode: Mode = "full",
    tags: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Put the model into the registry at `uri`, unless the registry has it already.

    Args:
        variant: the model, with a howdah.json.
        uri: MLflow's tracking and registry server, or sqlite:///file.
        name: name of the registered model, which is created if it does not exist.
        experiment: experiment of the registration's run, created as well.
        alias: moved to this version, e.g. champion; None: aliases stay as they are.
        mode: full: the export is uploaded; reference: only the path where it is published.
        tags: more tags of the version, without `howdah.`; set on an existing version, too.
        say: takes a line.
    Returns:
        {name, version, uri: models:/NAME/VERSION, alias, changed, run_id}.
    Raises:
        UsageError: no MLflow, a name or alias that MLflow refuses, or a model that could not be
            loaded from there.
        ModelError: a model that Howdah has not exported.
        ClusterError: the server refuses, or does not answer.
    """
    _check(name, alias)
    if not variant.run_id or not variant.weights:
        raise ModelError(
            "the model does not say which run made it",
            where=variant.path,
            expected="howdah.json with run_id and weights_sha256",
            got=", ".join(sorted(variant.info)) or "no howdah.json",
        )
    require_loadable(variant)
    with opened(uri) as (mlflow, client):
        version = _version_of(client, name, variant.identity)
        changed = version is None
        if version is None:
            say(f"registering {variant.title} as {name}")
            made = _add(mlflow, client, variant, name, experiment, mode)
            # Another command may have added the model at the same time: the first version stays.
            version = _version_of(client, name, variant.identity) or made
            changed = version == made
            if not changed:
                _drop(client, name, made, version, say)
        for key, value in _shown(tags or {}).items():
            client.set_model_version_tag(name, version, key, value)
        if alias is not None:
            client.set_registered_model_alias(name, alias, version)
    return {
        "name": name, "version": int(version), "uri": f"models:/{name}/{version}",
        "alias": alias, "changed": changed, "run_id": variant.run_id,
    }  # fmt: skip


def require_mlflow() -> None:
    """Require MLflow.

    Raises:
        UsageError: it is not installed.
    """
    if importlib.util.find_spec("mlflow") is None:
        raise UsageError("MLflow is not installed", remedy="pip install 'howdah[tracking]'")


def require_loadable(variant: Version) -> None:
    """Refuse a model that pyfunc_model.py would refuse whenever MLflow loads it.

    Raises:
        UsageError: it does not predict a single label of a single text.
    """
    where = f"MLflow: {variant.path}"
    require_kind(variant.kind, "text", where=where, remedy="use `howdah predict` for images")
    require_one_label(variant.task, pairs=variant.pairs, where=where, remedy="use `howdah predict`")


def _check(name: str, alias: str | None) -> None:
    require_mlflow()
    if not _NAME.fullmatch(name):
        raise UsageError(
            "MLflow does not accept this name",
            where="publish.name",
            expected="1 to 250 characters without / : \\ and quotes",
            got=name,
        )
    if alias is not None and (not _ALIAS.fullmatch(alias) or _RESERVED.fullmatch(alias)):
        raise UsageError(
            "MLflow does not accept this alias",
            where="--alias",
            expected="letters, digits, _ and -; not latest, not v1",
            got=alias,
        )


@contextmanager
def opened(uri: str) -> Iterator[tuple[Any, Any]]:
    """Yield (mlflow, a client of it) for this URI; their errors become Howdah's.

    Raises:
        ClusterError: the server refuses, or does not answer.
    """
    # As in training/run/tracking.py, usage is reported only where the user asks for it.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # stdout is for --json
    # By default its client retries for minutes while a user waits.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    import mlflow
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    for logger in ("mlflow", "alembic"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    try:
        mlflow.set_tracking_uri(uri)
        mlflow.set_registry_uri(uri)
        yield mlflow, mlflow.MlflowClient(tracking_uri=uri, registry_uri=uri)
    except (MlflowException, SQLAlchemyError, OSError) as error:
        raise ClusterError(
            "the model registry cannot be used",
            where=f"tracking.mlflow.uri {redact.text(uri)}",
            got=redact.text(str(error).splitlines()[0] if str(error) else type(error).__name__),
        ) from None


def _version_of(client: Any, name: str, identity: VersionIdentity) -> str | None:
    """Find the first version with this identity."""
    numbers = [
        version.version
        for version in client.search_model_versions(f"name = '{name}'")
        if VersionIdentity(*(version.tags.get(_TAG + key) for key in VersionIdentity._fields))
        == identity
    ]
    return min(numbers, key=int, default=None)


def _drop(client: Any, name: str, made: str, first: str, say: Callable[[str], None]) -> None:
    """Delete a version that is in the registry twice, if this user may."""
    from mlflow.exceptions import MlflowException

    try:
        client.delete_model_version(name, made)
    except MlflowException:
        say(f"models:/{name}/{made} could not be deleted: it is the same as models:/{name}/{first}")


def _add(mlflow: Any, client: Any, variant: Version, name: str, experiment: str, mode: Mode) -> str:
    from mlflow.models import ModelSignature
    from mlflow.types.schema import Array, ColSpec, Schema

    signature = ModelSignature(
        inputs=Schema([ColSpec("string", "text")]),
        outputs=Schema(
            [
                ColSpec("string", "label", required=False),
                ColSpec("double", "score", required=False),
                ColSpec(Array("double"), "scores", required=False),
                ColSpec("string", "error", required=False),
            ]
        ),
    )
    existing = client.get_experiment_by_name(experiment)
    number = existing.experiment_id if existing else client.create_experiment(experiment)
    code = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pyfunc_model.py")
    framework = variant.info.get("framework") or "torch"
    title = f"register {variant.title}"
    with (
        mlflow.start_run(experiment_id=number, run_name=title) as run,
        warnings.catch_warnings(),
        tempfile.TemporaryDirectory(prefix="howdah-register-") as directory,
    ):
        warnings.simplefilter("ignore")  # MLflow advises to give an example of the input
        if mode == "full":
            patterns = [*EXPORT_PATTERNS, _CARD]
            files = modelfiles.fetch(variant.path, patterns=patterns)
            whole = integrity.unchanged(
                variant.path, integrity.files_of(variant.path), files, patterns
            )
            artifacts = {"export": files}
        elif mode == "reference":
            references.write(directory, variant)
            whole, artifacts = contextlib.nullcontext(), {"reference": directory}
        else:
            assert_never(mode)
        with whole:
            logged_model = mlflow.pyfunc.log_model(
                name="model", python_model=code, artifacts=artifacts, signature=signature,
                # Keys that a loader may set; "": the framework that the model was trained with.
                model_config={"framework": ""},
                pip_requirements=[f"howdah[{framework},etl,tracking]=={__version__}"],
            )  # fmt: skip
        client.log_batch(run.info.run_id, metrics=_metrics(variant))
    registered = mlflow.register_model(logged_model.model_uri, name, tags=_tags(variant))
    return registered.version


def _tags(variant: Version) -> dict[str, str]:
    info, dataset = variant.info, variant.info.get("dataset") or {}
    tags = {
        **variant.identity._asdict(),
        "published": variant.title if variant.number is not None else None,
        "framework": info.get("framework"),
        "step": info.get("step"),
        "dataset": dataset.get("hash"),
        "labels": ", ".join(variant.labels),
        "version": variant.number,
        "path": variant.absolute_path,
        "software": __version__,
    }
    return _shown(tags)


def _shown(tags: Mapping[str, Any]) -> dict[str, str]:
    return {
        _TAG + key: redact.text(str(value))[:5000]
        for key, value in tags.items()
        if value is not None
    }


def _metrics(variant: Version) -> list[Any]:
    """Return the export's metrics, under the names that a run's tracking has."""
    from mlflow.entities import Metric

    from howdah.models.runs.metrics_log import flat

    now = 0  # MLflow requires a time, and that of the evaluation is not recorded
    step = int(variant.info.get("step") or 0)
    metrics = flat(variant.info.get("metrics") or {})
    return [Metric(name, value, now, step) for name, value in metrics.items()][:1000]
