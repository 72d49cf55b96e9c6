"""The Airflow provider that `pip install howdah[airflow]` adds to an Airflow.

It runs everything as `howdah ...` commands in child processes, on this machine or on an edge node,
so an Airflow that another team runs needs no framework, Spark or Java. This module does not import
Airflow: Airflow reads `provider_info` at each start, and an older Airflow must be able to call
`require`.
"""

from __future__ import annotations

import importlib.metadata
from typing import Any

from howdah import __version__
from howdah.errors import UsageError

CONNECTION_TYPE = "howdah"
DEFAULT_CONNECTION = "howdah_default"

_NEEDED = (3, 3)
_MISSING = (
    ((3, 0), "the task SDK (airflow.sdk) and tasks that use the API server alone"),
    ((3, 1), "tasks that wait for a person's approval (human in the loop)"),
    ((3, 3), "airflow.sdk.ResumableJobMixin and the task state store: a retry finds its job"),
)
"""Features of Airflow that Howdah uses, each with the first version that has it."""


class AirflowTooOld(UsageError, ImportError):
    """Airflow is missing or too old; an ImportError, which Airflow shows as the DAG's error."""


def require() -> None:
    """Refuse an Airflow that lacks what Howdah needs; howdah/airflow/required calls it.

    Raises:
        AirflowTooOld: Airflow is not installed, or lacks features that the message lists.
    """
    version = _airflow_version()
    if version is None:
        raise AirflowTooOld(
            "Howdah's Airflow provider needs Airflow, which is not installed",
            expected="Airflow 3.3 or newer",
            remedy="pip install 'howdah[airflow]'",
        )
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < _NEEDED:
        missing = [what for since, what in _MISSING if numbers < since]
        raise AirflowTooOld(
            "this Airflow is older than what Howdah needs",
            expected=f"Airflow {'.'.join(map(str, _NEEDED))} or newer",
            got=f"Airflow {version}, which lacks: {'; '.join(missing)}",
            remedy="upgrade Airflow; `howdah submit` and `howdah train` run under any scheduler",
        )


def _airflow_version() -> str | None:
    """The installed Airflow's version, without importing it."""
    for name in ("apache-airflow-core", "apache-airflow"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def provider_info() -> dict[str, Any]:
    """Airflow's description of this package (entry point group `apache_airflow_provider`)."""
    from howdah.airflow.runner.settings import form_fields

    return {
        "package-name": "howdah",
        "name": "Howdah",
        "description": "From text on Hadoop or on one machine to a published DistilBERT model.",
        "versions": [__version__],
        "connection-types": [
            {
                "connection-type": CONNECTION_TYPE,
                "hook-class-name": "howdah.airflow.hook.HowdahHook",
                "hook-name": "Howdah",
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "schema", "login", "password", "port"],
                },
                "conn-fields": form_fields(),
            }
        ],
        "extra-links": [
            "howdah.airflow.links.ApplicationLink",
            "howdah.airflow.links.LogsLink",
            "howdah.airflow.links.JobPageLink",
            "howdah.airflow.links.ReportLink",
            "howdah.airflow.links.DriftLink",
            "howdah.airflow.links.MlflowLink",
        ],
    }
