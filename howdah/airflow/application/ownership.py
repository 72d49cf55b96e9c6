"""Which task, and which try of it, an application belongs to.

A task of a DAG run has at most one application. It is found by a tag, so that a try whose
predecessor was killed before it stored the id does not submit a second one. That tag is random, and
stored in the task's state before anything is submitted: a tag made of the task's names
(`TaskKey.tag`, shown to users) can be guessed by any user of the cluster.

The try that watches an application names itself in the task's XCom; the try that kills one leaves
its token in YARN's diagnostics. So an older try whose end Airflow reports late does not kill an
application that a newer try watches, and a try whose application an older one has killed submits
again.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

OWNER_KEY = "howdah_owner"
"""XCom key of the execution that watches the task's application: {"token", "try_number"}."""
CLAIM_KEY = "howdah_claim"
"""Key of `new_claim`'s text in the task's state."""
_KILLED = re.compile(r"\[(airflow-[0-9a-f]{16}) try \d+ ([0-9a-f]+)\]")


@dataclass(frozen=True)
class TaskKey:
    """A task of a DAG run, the same for all its tries."""

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
        """The tag that shows users which task submitted an application; not trusted."""
        names = json.dumps([self.dag_id, self.run_id, self.task_id, self.map_index])
        return f"airflow-{hashlib.sha256(names.encode()).hexdigest()[:16]}"

    def reason(self, try_number: int, token: str, why: str) -> str:
        """The diagnostics for YARN when an execution of the task kills the application."""
        task = f"{self.dag_id}.{self.task_id}"
        return f"{why}: Airflow, {task} [{self.tag} try {try_number} {token}]"

    def as_dict(self) -> dict[str, Any]:
        """Keyword arguments of Airflow's calls."""
        return {
            "dag_id": self.dag_id, "run_id": self.run_id, "task_id": self.task_id,
            "map_index": self.map_index,
        }  # fmt: skip


def config_hash(config: Mapping[str, Any]) -> str:
    """Hash of a configuration: a try takes over only an application of the same one."""
    text = json.dumps(config, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def config_tag(hashed: str) -> str:
    """The tag that holds the hash of an application's configuration."""
    return f"airflow-config-{hashed}"


def claim_tag(claim: str) -> str:
    """The tag that a task's applications are found by.

    Args:
        claim: random, of the task.
    """
    return f"airflow-claim-{claim}"


def new_claim() -> str:
    """A random text for `claim_tag`, which no other user can know before the application runs."""
    return secrets.token_hex(16)


def new_token() -> str:
    """A random id of one execution of a task. A try number is not enough: a try that Airflow has
    lost may still run beside the next one, under the same number."""
    return secrets.token_hex(6)


def killed_by(diagnostics: str, key: TaskKey) -> str | None:
    """The token of this task's execution that killed an application; None: none of them did.

    Args:
        diagnostics: YARN's, of the application.
    """
    tokens = [token for tag, token in _KILLED.findall(diagnostics or "") if tag == key.tag]
    return tokens[-1] if tokens else None
