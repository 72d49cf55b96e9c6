"""Failure callback of the DAGs: it notifies by the Connection once no retry follows."""

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
            "what": redact.text(f"{ti.dag_id}.{ti.task_id} failed: {first or 'unknown cause'}"),
            "error": redact.text(str(error)) if error is not None else None,
            "log": getattr(ti, "log_url", None),
        }  # fmt: skip
        hook = HowdahHook(connection_of(context))
        if hook.settings.notifiers:
            notifiers.notify(hook, "failure", context, about)
    except Exception:  # an error here must not hide the task's own
        log.exception("the notification of a failed task was not sent")


ON_FAILURE = {"on_failure_callback": task_failed}
"""`default_args` of a DAG."""


def connection_of(context: Mapping[str, Any]) -> str:
    """The Connection of a task: its field, or the param where the field is not rendered."""
    conn_id = getattr(context.get("task"), "conn_id", None)
    if isinstance(conn_id, str) and "{{" not in conn_id:
        return conn_id
    sent = dict(context.get("params") or {}).get("conn_id")
    return sent if isinstance(sent, str) and sent else DEFAULT_CONNECTION
