"""Find Spark's applications on YARN by tag, kill them and read their containers' logs.

Killing runs Hadoop's command line from Spark's jars (`spark-class`), so it needs no `yarn` program;
reading logs does.
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
from howdah.hadoop.resourcemanager import APPLICATION, OVER

_CONTAINER = re.compile(r"\bcontainer_(?:e\d+_)?(\d+_\d+)_\d+_\d+\b")
"""A container's id, and in it its application's number."""
_CLI = "org.apache.hadoop.yarn.client.cli.ApplicationCLI"
_LOG_BYTES = 262_144  # of each container's end
_CAUSE_CHARACTERS = 500
_CALL_SECONDS = 60.0
AGGREGATION_SECONDS = 60.0
"""How long to wait for logs: a NodeManager uploads them after the application has ended."""

_CAUSES = (
    # (pattern, which of the lines that match), the most specific first
    (re.compile(r"OutOfMemoryError"), -1),
    (re.compile(r"running beyond (?:physical|virtual) memory limits"), -1),
    (re.compile(r"QuotaExceededException|No space left on device"), -1),
    # not Spark's exception that only wraps another one
    (re.compile(r"^[\w.]*(?:Error|Exception): (?!Exception thrown in awaitResult)"), -1),
    (re.compile(r"^Caused by: "), -1),
    (re.compile(r"(?:Exception|Error): "), -1),
    (re.compile(r"^Error\b"), 0),  # of a Java that does not start
    (re.compile(r"\b(?:not found|cannot|denied|refused)\b", re.IGNORECASE), -1),
)


@dataclass(frozen=True, kw_only=True)
class Hadoop:
    """Runs Hadoop's command lines with a SPARK_HOME and an environment."""

    spark_home: str
    env: Mapping[str, str]

    def run(self, main: str, *arguments: str) -> subprocess.CompletedProcess:
        """Run a main class of Spark's jars; its output as text."""
        return self.call([os.path.join(self.spark_home, "bin", "spark-class"), main, *arguments])

    def call(self, argv: Sequence[str]) -> subprocess.CompletedProcess:
        """Run a program; its output as text. Exit code 124: it ran out of time."""
        # In a new session: Ctrl-C at a terminal must not end the command that kills.
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
        folders = ([os.path.join(home, "bin")] if home else []) + [self.env.get("PATH", "")]
        return shutil.which("yarn", path=os.pathsep.join(folders))


def tagged(hadoop: Hadoop, tag: str, owner: str | None) -> list[str]:
    """Ids of the applications with a tag that are not over.

    Args:
        owner: their user; None: any.
    """
    answer = hadoop.run(_CLI, "application", "-list", "-appTags", tag, "-appStates", "ALL")
    return live(answer.stdout, owner)


def live(listing: str, owner: str | None) -> list[str]:
    """The ids in the output of Hadoop's `application -list` that are not over, of one user.

    Its columns are separated by tabs: id, name, type, user, queue, state...
    """
    ids = []
    for line in listing.splitlines():
        columns = [column.strip() for column in line.split("\t")]
        if len(columns) < 6 or not APPLICATION.fullmatch(columns[0]):
            continue
        if columns[5] not in OVER and owner in (None, columns[3]):
            ids.append(columns[0])
    return ids


def kill(hadoop: Hadoop, application: str) -> str | None:
    """Kill an application, which may be over already; the reason if that failed, else None."""
    answer = hadoop.run(_CLI, "application", "-kill", application)
    text = answer.stdout + answer.stderr
    if answer.returncode == 0 or "has already finished" in text:
        return None
    return (text.strip().splitlines() or [f"exit code {answer.returncode}"])[-1]


def logs(
    hadoop: Hadoop, application: str, *, container: str | None = None, owner: str | None = None
) -> str:
    """The ends of the containers' stderr and stdout; empty if they do not come in time.

    Uses the `yarn` of HADOOP_HOME or PATH: Spark's shaded jars lack what LogsCLI needs.
    """
    program = hadoop.yarn()
    if program is None:
        return ""
    argv = [program, "logs", "-applicationId", application, "-size", str(-_LOG_BYTES)]
    argv += ["-containerId", container] if container else []
    argv += ["-appOwner", owner] if owner else []
    deadline = time.monotonic() + AGGREGATION_SECONDS
    while True:
        answer = hadoop.call(argv)
        if answer.returncode == 0 and "LogLength:" in answer.stdout:
            return answer.stdout
        if time.monotonic() > deadline:
            return ""
        time.sleep(1.0)


def failed_container(text: str) -> str | None:
    """The container that a message of Spark or YARN names, if it names one."""
    match = _CONTAINER.search(text)
    return match.group() if match else None


def cause(log: str) -> str | None:
    """The line of a log that says why its process failed, or None.

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

    It prints that line once YARN has accepted the application, after "Submitting ...".
    """
    if "Application report for" not in line:
        return None
    match = APPLICATION.search(line)
    return match.group() if match else None


def states(lines: Sequence[str]) -> list[str]:
    """The states that spark-submit reported, in order, each once."""
    matches = (re.search(r"\(state: (\w+)\)", line) for line in lines)
    return list(dict.fromkeys(match.group(1) for match in matches if match))


def diagnostics(lines: Sequence[str]) -> str:
    """YARN's last diagnostics of an application in spark-submit's reports; may be empty.

    For a container that wrote no log they have the end of its stderr.
    """
    starts = [n for n, line in enumerate(lines) if "diagnostics:" in line]
    if not starts:
        return ""
    texts = [lines[starts[-1]].partition("diagnostics:")[2].strip()]
    for line in lines[starts[-1] + 1 :]:
        if "ApplicationMaster host:" in line:
            break
        texts.append(line.strip())
    return "\n".join(line for line in texts if line)


def explain(error: ClusterError, hadoop: Hadoop, owner: str | None) -> None:
    """If the error names a container, add the cause of its failure from its log.

    Args:
        owner: of the application, if it is another user (`run.user`).
    """
    container = failed_container(error.where or "")
    if container is None:
        return
    application = _CONTAINER.sub(r"application_\1", container)
    reason = cause(logs(hadoop, application, container=container, owner=owner))
    if reason is not None:
        error.got = f"{error.got}\n{container} says: {reason}"
    error.remedy = f"{error.remedy}; yarn logs -applicationId {application}"
