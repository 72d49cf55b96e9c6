"""`howdah doctor`: run all checks and print the findings.

It imports no framework: versions come from the packages' metadata, and child processes load
Horovod's libraries.
"""

from __future__ import annotations

import concurrent.futures
import json as json_module
import os
import sys
from collections.abc import Callable, Mapping, Sequence

from howdah.config.launchers import LAUNCHERS
from howdah.doctor import checks, hadoop, packages, spark, yarn
from howdah.doctor.checks import Check

_COLOURS = {"ok": "32", "warn": "33", "fail": "31", "skip": "2"}


def run_checks(environ: Mapping[str, str] | None = None) -> list[Check]:
    """All findings, in a fixed order; the checks run in parallel, since most wait for a program.

    Args:
        environ: the environment to judge; the process's own by default.
    """
    env = dict(os.environ if environ is None else environ)
    functions: Sequence[Callable[[Mapping[str, str]], Check]] = (
        checks.check_python,
        packages.check_packages,
        checks.check_java,
        spark.check_spark,
        checks.check_mpi,
        packages.check_horovod,
        checks.check_gpu,
        checks.check_cores,
        checks.check_memory,
        checks.check_shared_memory,
        checks.check_disk,
        checks.check_ports,
        checks.check_hostname,
        checks.check_locale,
        checks.check_hadoop_conf,
        checks.check_hadoop_home,
        hadoop.check_namenode,
        hadoop.check_login,
        hadoop.check_key_servers,
        yarn.check_resourcemanager,
        yarn.check_submission,
        checks.check_classpath,
    )
    with concurrent.futures.ThreadPoolExecutor(max_workers=len(functions)) as pool:
        return list(pool.map(lambda check: check(env), functions))


def render(findings: Sequence[Check], *, colour: bool = False) -> str:
    """A line for each finding, its remedy below it, and a closing line."""
    width = max(len(check.name) for check in findings)
    lines = []
    for check in findings:
        status = f"{check.status:<4}"
        if colour:
            status = f"\033[{_COLOURS[check.status]}m{status}\033[0m"
        lines.append(f"{status}  {check.name:<{width}}  {check.found}")
        if check.remedy:
            lines.append(f"      {'':<{width}}  -> {check.remedy}")
    failed = [check.name for check in findings if check.status == "fail"]
    warned = sum(check.status == "warn" for check in findings)
    verdict = f"not ready: {', '.join(failed)}" if failed else "ready"
    warnings = f" ({warned} warning{'s' if warned > 1 else ''})" if warned else ""
    lines.append(f"\n{verdict}{warnings}")
    return "\n".join(lines)


def of_launcher(findings: Sequence[Check], launcher: str) -> list[Check]:
    """The findings, with those skipped that only other launchers than this one need."""
    others = {check for row in LAUNCHERS.values() for check in row.checks}
    needless = others - {*LAUNCHERS[launcher].checks}
    return [
        Check(one.name, "skip", f"not needed with --launcher {launcher}")
        if one.name in needless
        else one
        for one in findings
    ]


def doctor(json: bool = False, launcher: str | None = None, more: Sequence[Check] = ()) -> int:
    """Check this machine and print the findings on stdout.

    Args:
        json: print exactly one JSON object instead of lines.
        launcher: one of LAUNCHERS: what only others need is not asked for; None: all are.
        more: further findings, of a configuration.

    Returns:
        The exit code: 0, or 1 if something needed is missing.
    """
    findings = run_checks()
    if launcher is not None:
        findings = of_launcher(findings, launcher)
    findings = [*findings, *more]
    good = all(check.status != "fail" for check in findings)
    if json:
        report = {"ok": good, "checks": [check.as_dict() for check in findings]}
        print(json_module.dumps(report, ensure_ascii=False))
    else:
        colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ
        print(render(findings, colour=colour))
    return 0 if good else 1
