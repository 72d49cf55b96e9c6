"""What a run's first look at its machine or cluster asks, and which findings stop it."""

from __future__ import annotations

from typing import Any

from howdah.airflow import failures
from howdah.airflow.hook import HowdahHook, refusals

__all__ = ["doctor", "resource_manager"]

_LAUNCHING = {"mpi", "horovod", "shared memory"}
"""Checks of `howdah doctor` that only a machine which trains must pass, not one that submits."""


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
    failing = [check for check in checks if check["status"] == "fail"]
    if backend == "yarn":
        failing = [check for check in failing if check["name"].lower() not in _LAUNCHING]
    if failing:
        raise failures.failed(
            {
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


def resource_manager(hook: HowdahHook, log: Any) -> dict[str, Any]:
    """The ResourceManager as Airflow's own machine sees it: it is asked while a job runs."""
    with refusals(), hook.logged_in():
        info = hook.resource_manager().info()
    found = {key: info.get(key) for key in ("state", "haState", "resourceManagerVersion")}
    log.info("YARN's ResourceManager: %s", found)
    return found
