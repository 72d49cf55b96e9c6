"""`howdah doctor`: is this machine fit, and what to do where it is not.

Frameworks are never imported here: versions come from the packages' metadata, and Horovod's
libraries are asked in processes of their own.
"""

from __future__ import annotations

import concurrent.futures
import json as json_module
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from howdah import doctor_checks, doctor_hadoop, doctor_packages, doctor_spark, doctor_yarn
from howdah.doctor_checks import Check

_COLOURS = {"ok": "32", "warn": "33", "fail": "31", "skip": "2"}


def run_checks(environ: Mapping[str, str] | None = None) -> list[Check]:
    """All checks, in a fixed order; they run side by side, most of them wait for a program.

    Args:
        environ: the environment to judge; the process's own by default.
    """
    env = dict(os.environ if environ is None else environ)
    checks: Sequence[Callable[[Mapping[str, str]], Check]] = (
        doctor_checks.check_python,
        doctor_packages.check_packages,
        doctor_checks.check_java,
        doctor_spark.check_spark,
        doctor_checks.check_mpi,
        doctor_packages.check_horovod,
        doctor_checks.check_gpu,
        doctor_checks.check_cores,
        doctor_checks.check_memory,
        doctor_checks.check_shared_memory,
        doctor_checks.check_disk,
        doctor_checks.check_ports,
        doctor_checks.check_hostname,
        doctor_checks.check_locale,
        doctor_checks.check_hadoop_conf,
        doctor_checks.check_hadoop_home,
        doctor_hadoop.check_namenode,
        doctor_hadoop.check_login,
        doctor_yarn.check_resourcemanager,
        doctor_yarn.check_submission,
        doctor_checks.check_classpath,
    )
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(checks)) as pool:
        return list(pool.map(lambda check: check(env), checks))


def render(checks: Sequence[Check], *, colour: bool = False) -> str:
    """A line for each check, its remedy below it, and a closing line."""
    width = max(len(check.name) for check in checks)
    lines = []
    for check in checks:
        status = f"{check.status:<4}"
        if colour:
            status = f"\033[{_COLOURS[check.status]}m{status}\033[0m"
        lines.append(f"{status}  {check.name:<{width}}  {check.found}")
        if check.remedy:
            lines.append(f"      {'':<{width}}  -> {check.remedy}")
    failed = [check.name for check in checks if check.status == "fail"]
    warned = sum(check.status == "warn" for check in checks)
    verdict = f"not fit: {', '.join(failed)}" if failed else "fit"
    lines.append(f"\n{verdict}" + (f" ({warned} to look at)" if warned else ""))
    return "\n".join(lines)


def doctor(json: bool = False) -> int:
    """Check this machine and print the findings on stdout.

    Args:
        json: print exactly one JSON object instead of lines.

    Returns:
        The exit code: 0, or 1 if something needed is missing.
    """
    checks = run_checks()
    good = all(check.status != "fail" for check in checks)
    if json:
        report = {"ok": good, "checks": [check.as_dict() for check in checks]}
        print(json_module.dumps(report, ensure_ascii=False))
    else:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print(render(checks, colour=colour))
    return 0 if good else 1
