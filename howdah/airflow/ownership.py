"""Whose an application is: of which task, and of which try of it.

A task of a DAG run has at most one application. It is found by a tag, so that a try whose
predecessor was killed before it could write the id down does not submit a second one. Who watches
an application says so in the task's XCom; who ends one leaves that in YARN's diagnostics. So an
older try, told late that it is over, lets an application go that a newer one has taken over; and a
try that finds its application ended by an older one submits anew.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["OWNER_KEY", "TaskKey", "config_hash", "config_tag", "killer", "new_token"]

OWNER_KEY = "howdah_owner"
"""XCom key of who watches the task's application: {"token", "try_number"}."""
_KILLED = re.compile(r"\[(airflow-[0-9a-f]{16}) try \d+ ([0-9a-f]+)\]")


@dataclass(frozen=True)
class TaskKey:
    """A task of a DAG run, whatever the try."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1

    @classmethod
    def of(cls, task_instance: Any) -> TaskKey:
        """The key of a task instance (worker's or triggerer's)."""
        index = task_instance.map_index
        return cls(
            task_instance.dag_id, task_instance.run_id, task_instance.task_id,
            -1 if index is None else index,
        )  # fmt: skip

    @property
    def tag(self) -> str:
        """The tag of the task's applications."""
        told = json.dumps([self.dag_id, self.run_id, self.task_id, self.map_index])
        return f"airflow-{hashlib.sha256(told.encode()).hexdigest()[:16]}"

    def reason(self, try_number: int, token: str, why: str) -> str:
        """What YARN is told when an execution of the task ends the application."""
        task = f"{self.dag_id}.{self.task_id}"
        return f"{why}: Airflow, {task} [{self.tag} try {try_number} {token}]"

    def as_dict(self) -> dict[str, Any]:
        """For calls of Airflow's that take these names."""
        return {
            "dag_id": self.dag_id, "run_id": self.run_id, "task_id": self.task_id,
            "map_index": self.map_index,
        }  # fmt: skip


def config_hash(config: Mapping[str, Any]) -> str:
    """Tells configurations apart: an application of another one is not taken over."""
    told = json.dumps(config, sort_keys=True, default=str)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def config_tag(hashed: str) -> str:
    """The tag that says with which configuration an application was submitted."""
    return f"airflow-config-{hashed}"


def new_token() -> str:
    """Tells executions of a task apart: a try that Airflow has lost may still run beside the next,
    and under the same number."""
    return secrets.token_hex(6)


def killer(diagnostics: str, key: TaskKey) -> str | None:
    """The execution of this task (its token) that has ended an application; None: none has.

    Args:
        diagnostics: YARN's, of the application.
    """
    found = [token for tag, token in _KILLED.findall(diagnostics or "") if tag == key.tag]
    return found[-1] if found else None
