"""`default_args` of the DAGs: a task that has failed for good informs by the Connection."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from howdah.airflow import DEFAULT_CONNECTION

log = logging.getLogger(__name__)


def task_failed(context: Mapping[str, Any]) -> None:
    """Airflow's `on_failure_callback`: called once no retry follows; never raises."""
    from howdah import redact

    try:
        from howdah.airflow.alerts import notifiers
        from howdah.airflow.hook import HowdahHook

        ti = context["ti"]
        names = {"dag": ti.dag_id, "run": ti.run_id, "task": ti.task_id}
        error = context.get("exception")
        first = next(iter(str(error).splitlines()), "") if error is not None else ""
        about = {
            **names, "event": "failure",
            "what": redact.text(f"{ti.dag_id}.{ti.task_id} has failed: {first or 'no cause'}"),
            "error": redact.text(str(error)) if error is not None else None,
            "log": getattr(ti, "log_url", None),
        }  # fmt: skip
        hook = HowdahHook(connection_of(context))
        if hook.settings.notifiers:
            notifiers.notify(hook, "failure", context, about)
    except Exception:  # the task has failed already, for a reason of its own
        log.exception("the failure of a task was not notified")


ON_FAILURE = {"on_failure_callback": task_failed}
"""`default_args` of a DAG."""


def connection_of(context: Mapping[str, Any]) -> str:
    """The Connection of a task; where its field is not rendered, the param."""
    given = getattr(context.get("task"), "conn_id", None)
    if isinstance(given, str) and "{{" not in given:
        return given
    sent = dict(context.get("params") or {}).get("conn_id")
    return sent if isinstance(sent, str) and sent else DEFAULT_CONNECTION
