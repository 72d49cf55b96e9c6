"""What a run's first look at its machine or cluster asks, and which findings stop it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from howdah.airflow import failures
from howdah.airflow.hook import HowdahHook, refusals
from howdah.errors import ConfigError

__all__ = ["doctor", "ranks", "resource_manager"]

_TRAINING = {"packages", "Horovod", "shared memory"}
"""Checks of `howdah doctor` that a machine which trains must pass, not one that submits."""
_CLUSTER = {"HADOOP_CONF_DIR", "ResourceManager", "howdah submit"}
"""Those that a machine which submits must pass; skipped there is failed: it knows no cluster."""
_NEVER = {"MPI"}
"""What only one launcher of two needs: `howdah train` itself refuses without it."""


def ranks(config: Mapping[str, Any], np: int) -> None:
    """Each rank needs a row of the global batch.

    Raises:
        ConfigError: there are more ranks than rows.
    """
    rows = config["training"]["global_batch_size"]
    if not 1 <= np <= rows:
        raise ConfigError(
            "the global batch has no row for each rank",
            where="np, training.global_batch_size",
            expected=f"1 to {rows} ranks",
            got=str(np),
            remedy="start fewer ranks, or raise training.global_batch_size",
        )


def doctor(hook: HowdahHook, backend: str, log: Any) -> dict[str, Any]:
    """`howdah doctor` where commands run; its findings, in the log line by line.

    Raises:
        HowdahCommandRefused: something that this backend needs is missing; with all of it.
    """
    done = hook.call(["doctor", "--json"])
    if done.result is None or "checks" not in done.result:
        raise failures.failed(hook.error_of(["doctor"], done), done.code)
    checks = done.result["checks"]
    for check in checks:
        log.info("%-4s  %s: %s", check["status"], check["name"], check["found"])
    failing = [check for check in checks if _stops(check, backend)]
    if failing:
        raise failures.failed(
            {
                "error": "CheckFailed",
                "what": f"{hook.runner().where} is not fit for a run on backend {backend}",
                "problems": [
                    {"what": check["name"], "got": check["found"], "remedy": check["remedy"]}
                    for check in failing
                ],
            },
            1,
        )
    warned = [check["name"] for check in checks if check["status"] == "warn"]
    return {"ok": True, "to_look_at": warned}


def _stops(check: Mapping[str, Any], backend: str) -> bool:
    """True if a finding stands against a run on this backend."""
    name, status = check["name"], check["status"]
    if name in _CLUSTER:
        return backend == "yarn" and status in ("fail", "skip")
    needless = _NEVER | (_TRAINING if backend == "yarn" else set())
    return status == "fail" and name not in needless


def resource_manager(hook: HowdahHook, log: Any) -> dict[str, Any]:
    """The ResourceManager as Airflow's own machine sees it: it is asked while a job runs."""
    with refusals(), hook.logged_in():
        info = hook.resource_manager().info()
    found = {key: info.get(key) for key in ("state", "haState", "resourceManagerVersion")}
    log.info("YARN's ResourceManager: %s", found)
    return found
