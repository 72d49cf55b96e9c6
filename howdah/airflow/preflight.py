"""Checks of the machine or cluster before a run, and which of their failures stop the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from howdah.airflow import failures
from howdah.airflow.hook import HowdahHook, refusals
from howdah.config.launchers import LAUNCHERS
from howdah.config.training import TrainingSection
from howdah.errors import ConfigError

_TRAINING = {"packages", "shared memory"}
"""Checks of `howdah doctor` that a machine must pass to train (not to submit)."""
_CLUSTER = {"HADOOP_CONF_DIR", "ResourceManager", "howdah submit"}
"""Checks that a machine must pass to submit. A skipped check fails here: the cluster is not
configured."""
_LAUNCHERS = {check for row in LAUNCHERS.values() for check in row.checks}
"""Checks that only ranks of Horovod or of a bare launcher need."""

_NAMES = {"local": "this machine", "yarn": "YARN"}


def ranks(config: Mapping[str, Any], np: int) -> None:
    """Refuse more ranks than rows of the global batch.

    Raises:
        ConfigError: there are more ranks than rows.
    """
    rows = config["training"]["global_batch_size"]
    if not 1 <= np <= rows:
        raise ConfigError(
            "each rank needs at least one row of the global batch",
            where="np, training.global_batch_size",
            expected=f"1 to {rows} ranks",
            got=str(np),
        )


def over_horovod(config: Mapping[str, Any]) -> bool:
    """True if only Horovod can carry the sums of several ranks."""
    training = TrainingSection.model_validate(config["training"])
    return training.framework == "tensorflow" or training.comm == "horovod"


def doctor(hook: HowdahHook, on: str, log: Any, *, horovod: bool = False) -> dict[str, Any]:
    """Run `howdah doctor` on the machine of the commands and log each of its findings.

    Args:
        horovod: ranks that sum over Horovod are started there.
    Raises:
        HowdahCommandRefused: with every check that this cluster needs and the machine fails.
    """
    done = hook.call(["doctor", "--json"])
    if done.result is None or "checks" not in done.result:
        raise failures.failed(hook.error_of(["doctor"], done), done.code)
    checks = done.result["checks"]
    for check in checks:
        log.info("%-4s  %s: %s", check["status"], check["name"], check["found"])
    failing = [check for check in checks if _stops(check, on, horovod)]
    if failing:
        raise failures.failed(
            {
                "error": "CheckFailed",
                "what": f"{hook.runner().where} lacks what training on {_NAMES[on]} needs",
                "problems": [
                    {"what": check["name"], "got": check["found"], "remedy": check["remedy"]}
                    for check in failing
                ],
            },
            1,
        )
    warned = [check["name"] for check in checks if check["status"] == "warn"]
    return {"ok": True, "to_look_at": warned}


def _stops(check: Mapping[str, Any], on: str, horovod: bool) -> bool:
    """True if a finding prevents a run on this cluster."""
    name, status = check["name"], check["status"]
    if name in _CLUSTER:
        return on == "yarn" and status in ("fail", "skip")
    needless = _LAUNCHERS - {"Horovod"} if horovod else _LAUNCHERS
    if on == "yarn":
        needless = _LAUNCHERS | _TRAINING
    return status == "fail" and name not in needless


def resource_manager(hook: HowdahHook, log: Any) -> dict[str, Any]:
    """Query the ResourceManager from Airflow's machine, as the trigger does while a job runs."""
    with refusals(), hook.logged_in():
        info = hook.resource_manager().info()
    state = {key: info.get(key) for key in ("state", "haState", "resourceManagerVersion")}
    log.info("YARN's ResourceManager: %s", state)
    return state
