"""A client of a running Airflow's REST API, with a token."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import quote

from howdah.errors import ClusterError

OVER = frozenset({"success", "failed"})
TASK_OVER = frozenset({"success", "failed", "skipped", "upstream_failed", "removed"})
_ANSWER_SECONDS = 60.0
_POLL_SECONDS = 0.3


class AirflowApi:
    """A client of one Airflow.

    Args:
        url: URL of its pages, without a path.
        user, password: the login.
    """

    def __init__(self, url: str, user: str, password: str) -> None:
        import requests

        self.url = url
        self._login = {"username": user, "password": password}
        self._session = requests.Session()
        self._session.trust_env = False  # it is on loopback: no proxy, no .netrc

    # ------------------------------------------------------------------------------- plain REST
    def api(self, method: str, path: str, json: Any = None, **more) -> Any:
        """Call the API and return its answer, None if it is empty.

        Args:
            method: GET, POST, PATCH, DELETE.
            path: below /api/v2, such as "/dags".
            json: the body.
            more: for `requests`, such as `params`.
        Raises:
            ClusterError: the API refuses (`got` has its answer), or does not answer.
        """
        path, more = f"/api/v2{path}", {"json": json, **more}
        answer = self._send(method, path, **more)
        if answer.status_code == 401:  # the token has expired, or was not requested yet
            self._log_in()
            answer = self._send(method, path, **more)
        if answer.status_code >= 400:
            raise ClusterError(
                f"Airflow refuses {method} {path}",
                where=self.url,
                got=f"{answer.status_code} {answer.text[:2000]}",
            )
        if not answer.content:
            return None
        kind = answer.headers.get("Content-Type", "")
        return answer.json() if kind.startswith("application/json") else answer.text

    def _send(self, method: str, path: str, **more):
        import requests

        try:
            return self._session.request(method, self.url + path, timeout=_ANSWER_SECONDS, **more)
        except requests.RequestException as error:
            raise ClusterError(
                "Airflow's API server does not answer", where=self.url, got=str(error)
            ) from error

    def _log_in(self) -> None:
        answer = self._send("POST", "/auth/token", json=self._login)
        if answer.status_code >= 400:
            raise ClusterError(
                "Airflow refuses the login", where=self.url, got=str(answer.status_code)
            )
        token = answer.json()["access_token"]
        self._session.headers["Authorization"] = f"Bearer {token}"

    # -------------------------------------------------------------------------------- DAGs, runs
    def health(self) -> dict[str, Any]:
        """State and last heartbeat of each component."""
        return self.api("GET", "/monitor/health")

    def import_errors(self) -> list[dict[str, Any]]:
        """DAG files that could not be loaded: `filename`, `stack_trace`."""
        return self.api("GET", "/importErrors")["import_errors"]

    def dag_ids(self) -> list[str]:
        """All DAGs that were loaded."""
        return [dag["dag_id"] for dag in self.api("GET", "/dags", params={"limit": 100})["dags"]]

    def pause(self, dag_id: str, *, paused: bool) -> None:
        """Pause or unpause a DAG."""
        self.api("PATCH", f"/dags/{dag_id}", json={"is_paused": paused})

    def trigger(self, dag_id: str, conf: Mapping[str, Any] | None = None, run_id=None) -> str:
        """Start a run with these params, as the form does; return its id."""
        self.pause(dag_id, paused=False)
        run_id = run_id or f"manual_{uuid.uuid4().hex[:8]}"
        body = {"dag_run_id": run_id, "conf": dict(conf or {}), "logical_date": None}
        return self.api("POST", f"/dags/{dag_id}/dagRuns", json=body)["dag_run_id"]

    def run(self, dag_id: str, run_id: str) -> dict[str, Any]:
        """A run as the API shows it."""
        return self.api("GET", f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}")

    def state(self, dag_id: str, run_id: str) -> str:
        """A run's state: queued, running, success, failed."""
        return self.run(dag_id, run_id)["state"]

    # -------------------------------------------------------------------------------------- tasks
    def _task_path(self, dag_id: str, run_id: str, task_id: str = "") -> str:
        return f"/dags/{dag_id}/dagRuns/{quote(run_id, safe='')}/taskInstances" + (
            f"/{quote(task_id, safe='')}" if task_id else ""
        )

    def tasks(self, dag_id: str, run_id: str) -> dict[str, dict[str, Any]]:
        """All task instances of a run by task id."""
        instances = self.api("GET", self._task_path(dag_id, run_id))["task_instances"]
        return {task["task_id"]: task for task in instances}

    def task(self, dag_id: str, run_id: str, task_id: str) -> dict[str, Any]:
        """One task instance: `state`, `try_number`, `trigger`, ..."""
        return self.api("GET", self._task_path(dag_id, run_id, task_id))

    def log(self, dag_id: str, run_id: str, task_id: str, try_number: int | None = None) -> str:
        """The lines of a task's log as the page shows it; by default, of its last try."""
        if try_number is None:
            try_number = max(1, self.task(dag_id, run_id, task_id)["try_number"])
        path = f"{self._task_path(dag_id, run_id, task_id)}/logs/{try_number}"
        answer = self.api("GET", path, params={"full_content": "true"})
        return "\n".join(text for line in answer["content"] for text in _texts_of(line))

    def xcom(self, dag_id: str, run_id: str, task_id: str, key: str = "return_value") -> Any:
        """A value that a task has pushed."""
        path = f"{self._task_path(dag_id, run_id, task_id)}/xcomEntries/{key}"
        value = self.api("GET", path, params={"deserialize": "false"})["value"]
        return json.loads(value) if isinstance(value, str) and value[:1] in ("{", "[") else value

    def links(self, dag_id: str, run_id: str, task_id: str) -> dict[str, str | None]:
        """The extra links of a task as the page shows them now: name -> URL."""
        return self.api("GET", f"{self._task_path(dag_id, run_id, task_id)}/links")["extra_links"]

    def mark(self, dag_id: str, run_id: str, task_id: str, state: str) -> None:
        """Set a task's state by hand: success, failed."""
        self.api("PATCH", self._task_path(dag_id, run_id, task_id), json={"new_state": state})

    def clear(self, dag_id: str, run_id: str, task_ids: Collection[str] = (), **more) -> None:
        """Clear tasks in any state, so that they run again.

        Args:
            more: further fields of the API, such as `include_downstream=True`.
        """
        body = {
            "dry_run": False, "dag_run_id": run_id, "task_ids": list(task_ids) or None,
            "only_failed": False, "reset_dag_runs": True, **more,
        }  # fmt: skip
        self.api("POST", f"/dags/{dag_id}/clearTaskInstances", json=body)

    # ------------------------------------------------------------------------------------ waiting
    def wait_task(
        self, dag_id: str, run_id: str, task_id: str, states: Collection[str], seconds: float
    ) -> dict[str, Any]:
        """Wait for a task instance to reach one of these states, and return it.

        Raises:
            ClusterError: it ended in another state, or did not reach one within `seconds` (to
                detect a hang); its log is in the message.
        """
        deadline = time.monotonic() + seconds
        while True:
            task = self.task(dag_id, run_id, task_id)
            if task["state"] in states:
                return task
            if task["state"] in TASK_OVER or time.monotonic() > deadline:
                self._complain(dag_id, run_id, task_id, task["state"], " or ".join(states))
            time.sleep(_POLL_SECONDS)

    def wait_run(self, dag_id: str, run_id: str, seconds: float, state: str = "success") -> None:
        """Wait until a run has ended.

        Raises:
            ClusterError: the run ended in another state, or did not end within `seconds`; with the
                log of a task that failed.
        """
        deadline = time.monotonic() + seconds
        while True:
            now = self.state(dag_id, run_id)
            if now == state:
                return
            if now in OVER or time.monotonic() > deadline:
                tasks = self.tasks(dag_id, run_id)
                order = ("failed", "up_for_retry", "running", "deferred", "queued", None)
                bad = [
                    t for task_state in order for t in tasks.values() if t["state"] == task_state
                ]
                name = bad[0]["task_id"] if bad else next(iter(tasks))
                self._complain(dag_id, run_id, name, f"{now}; {_states(tasks)}", state)
            time.sleep(_POLL_SECONDS)

    def _complain(self, dag_id, run_id, task_id, got, expected) -> None:
        try:
            log = self.log(dag_id, run_id, task_id)
        except ClusterError as error:
            log = str(error)
        raise ClusterError(
            f"{task_id} did not reach the expected state",
            where=f"{dag_id} {run_id}",
            expected=expected,
            got=f"{got}\n{log[-6000:]}",
        )

    # -------------------------------------------------------------------------------- connections
    def connection(
        self, conn_id: str, extra: Mapping[str, Any], conn_type: str = "howdah", **fields
    ) -> None:
        """Create or replace a Connection.

        Args:
            extra: the type's own fields.
            fields: host, login, password, description...
        """
        body = {
            "connection_id": conn_id,
            "conn_type": conn_type,
            "extra": json.dumps(dict(extra)),
            **fields,
        }
        if conn_id in {each["connection_id"] for each in self.connections()}:
            self.api("PATCH", f"/connections/{conn_id}", json=body)
        else:
            self.api("POST", "/connections", json=body)

    def connections(self) -> list[dict[str, Any]]:
        """All Connections, secrets masked."""
        return self.api("GET", "/connections", params={"limit": 100})["connections"]


def _texts_of(line: Any) -> list[str]:
    """A line of a task's log, and the messages of the exceptions below it."""
    if isinstance(line, str):
        return [line]
    errors = line.get("error_detail") or []
    texts = [f"{each.get('exc_type')}: {each.get('exc_value')}" for each in errors]
    return [str(line.get("event", "")), *texts]


def _states(tasks: Mapping[str, Mapping[str, Any]]) -> str:
    return ", ".join(f"{name}: {task['state']}" for name, task in tasks.items())
