"""YARN applications of Spark: found by tag, killed, and their containers' logs read.

Killing runs Hadoop's own command line out of Spark's jars (`spark-class`), also where no `yarn` is
installed; logs need one.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from howdah.errors import ClusterError

APPLICATION = re.compile(r"\bapplication_\d+_\d+\b")
_CONTAINER = re.compile(r"\bcontainer_(?:e\d+_)?\d+_\d+_\d+_\d+\b")
_CLI = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"
_OVER = ("FINISHED", "FAILED", "KILLED")
_LOG_BYTES = 262_144  # of each container's end
_CAUSE_CHARACTERS = 500
_CALL_SECONDS = 60.0
AGGREGATION_SECONDS = 60.0
"""How long logs are waited for: a NodeManager uploads them after the application has ended."""

_CAUSES = (
    # (pattern, which of its lines), the most telling first
    (re.compile(r"OutOfMemoryError"), -1),
    (re.compile(r"running beyond (?:physical|virtual) memory limits"), -1),
    (re.compile(r"QuotaExceededException|No space left on device"), -1),
    # Spark's wrapping of what went wrong elsewhere tells nothing itself.
    (re.compile(r"^[\w.]*(?:Error|Exception): (?!Exception thrown in awaitResult)"), -1),
    (re.compile(r"^Caused by: "), -1),
    (re.compile(r"(?:Exception|Error): "), -1),
    (re.compile(r"^Error\b"), 0),  # Java's own, when it does not start
    (re.compile(r"\b(?:not found|cannot|denied|refused)\b", re.IGNORECASE), -1),
)


@dataclass(frozen=True, kw_only=True)
class Hadoop:
    """How to run Hadoop's command lines: a Spark's home and the environment for it."""

    spark_home: str
    env: Mapping[str, str]

    def run(self, main: str, *words: str) -> subprocess.CompletedProcess:
        """Run a main class out of Spark's jars; its output as text."""
        return self.call([os.path.join(self.spark_home, "bin", "spark-class"), main, *words])

    def call(self, argv: Sequence[str]) -> subprocess.CompletedProcess:
        """Run a program; its output as text. A hang ends as exit code 124."""
        # A session of its own: Ctrl-C at a terminal must not end the command that kills.
        try:
            return subprocess.run(
                argv, env=dict(self.env), capture_output=True, text=True, errors="replace",
                timeout=_CALL_SECONDS, check=False, start_new_session=True,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(argv, 124, "", f"none within {_CALL_SECONDS:.0f} s")

    def yarn(self) -> str | None:
        """Path of the `yarn` command, if there is one."""
        home = self.env.get("HADOOP_HOME")
        places = ([os.path.join(home, "bin")] if home else []) + [self.env.get("PATH", "")]
        return shutil.which("yarn", path=os.pathsep.join(places))


def tagged(hadoop: Hadoop, tag: str) -> list[str]:
    """Ids of the applications with a tag that are not over."""
    answer = hadoop.run(_CLI, "application", "-list", "-appTags", tag, "-appStates", "ALL")
    return [
        found.group()
        for line in answer.stdout.splitlines()
        if (found := APPLICATION.match(line.strip()))
        and not any(state in line.split("\t") or f" {state} " in line for state in _OVER)
    ]


def kill(hadoop: Hadoop, application: str) -> str | None:
    """Kill one, also if it is over by now; returns why that failed, or None."""
    answer = hadoop.run(_CLI, "application", "-kill", application)
    text = answer.stdout + answer.stderr
    if answer.returncode == 0 or "has already finished" in text:
        return None
    return (text.strip().splitlines() or [f"exit code {answer.returncode}"])[-1]


def logs(
    hadoop: Hadoop, application: str, *, container: str | None = None, owner: str | None = None
) -> str:
    """The ends of the containers' stderr and stdout; empty if they cannot be had in time.

    By the `yarn` of HADOOP_HOME or PATH: Spark's shaded jars lack what its LogsCLI needs.
    """
    program = hadoop.yarn()
    if program is None:
        return ""
    words = [program, "logs", "-applicationId", application, "-size", str(-_LOG_BYTES)]
    words += ["-containerId", container] if container else []
    words += ["-appOwner", owner] if owner else []
    deadline = time.monotonic() + AGGREGATION_SECONDS
    while True:
        answer = hadoop.call(words)
        if answer.returncode == 0 and "LogLength:" in answer.stdout:
            return answer.stdout
        if time.monotonic() > deadline:
            return ""
        time.sleep(1.0)


def failed_container(text: str) -> str | None:
    """The container that a message of Spark or YARN names as failed, if it names one."""
    found = _CONTAINER.search(text)
    return found.group() if found else None


def cause(log: str) -> str | None:
    """The line of a log that tells why its process failed, or None.

    >>> cause("INFO starting\\nValueError: no such column\\nINFO bye")
    'ValueError: no such column'
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    for pattern, which in _CAUSES:
        hits = [line for line in lines if pattern.search(line)]
        if hits:
            return hits[which][:_CAUSE_CHARACTERS]
    return None


def application_of(line: str) -> str | None:
    """The id in spark-submit's line "Application report for application_1_2 ...", else None.

    It reports an application once YARN has taken it; "Submitting ..." comes before that.
    """
    if "Application report for" not in line:
        return None
    found = APPLICATION.search(line)
    return found.group() if found else None


def states(lines: Sequence[str]) -> list[str]:
    """States that spark-submit reported, in order, each once."""
    found = (re.search(r"\(state: (\w+)\)", line) for line in lines)
    return list(dict.fromkeys(match.group(1) for match in found if match))


def diagnostics(lines: Sequence[str]) -> str:
    """What YARN said at last of an application, out of spark-submit's reports; it may be empty.

    A container that never came to write a log has the end of its stderr here.
    """
    starts = [n for n, line in enumerate(lines) if "diagnostics:" in line]
    if not starts:
        return ""
    said = [lines[starts[-1]].partition("diagnostics:")[2].strip()]
    for line in lines[starts[-1] + 1 :]:
        if "ApplicationMaster host:" in line:
            break
        said.append(line.strip())
    return "\n".join(line for line in said if line)


def explain(error: ClusterError, hadoop: Hadoop, owner: str | None) -> None:
    """Add the cause out of a lost container's log, where the error names the container.

    Args:
        owner: of the application, where it is not this user (`run.user`).
    """
    container = failed_container(error.where or "")
    if container is None:
        return
    epochless = container.removeprefix("container_").split("_")
    if epochless[0].startswith("e"):
        epochless = epochless[1:]
    application = "application_" + "_".join(epochless[:2])
    told = cause(logs(hadoop, application, container=container, owner=owner))
    if told is not None:
        error.got = f"{error.got}\n{container} says: {told}"
    error.remedy = f"{error.remedy}; yarn logs -applicationId {application}"
