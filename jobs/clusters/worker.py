"""A worker inside a cluster's call: a Spark task or a Ray actor runs an agent as its child.

The agent must be a separate process, since it handles signals and has training processes as
children. It must not outlive the call: the kernel ends it with the process that made it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from howdah.jobs.backend import DriverAddress


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What an agent is started with. It holds the job's key and secrets, and therefore reaches the
    agent's process only on its standard input."""

    container: str
    driver: DriverAddress
    config: str
    """The configuration as YAML."""
    secret_env: Mapping[str, str]
    directory: str
    """The job's directory on the driver's machine; workers elsewhere make a temporary one."""
    host: str
    """Host name of the driver."""

    def __repr__(self) -> str:
        return f"Assignment({self.container})"


def run_agent(assignment: Assignment, env: Mapping[str, str]) -> int:
    """Run an agent in the main thread of the cluster's process, and return its exit code.

    Args:
        env: variables to add to this process's environment.
    """
    from howdah.core.processes import die_with_parent
    from howdah.hadoop import web
    from howdah.process import isolation

    shared = os.uname().nodename == assignment.host and os.path.isdir(assignment.directory)
    if shared:
        home = os.path.join(assignment.directory, "containers", assignment.container)
        os.makedirs(home, mode=0o700)
    else:
        home = tempfile.mkdtemp(prefix=f"howdah-{assignment.container}-")
    mine = os.getpid()
    payload: dict[str, Any] = {**asdict(assignment), "home": home}
    try:
        with open(os.path.join(home, "agent.log"), "wb") as log:
            child = subprocess.Popen(
                isolation.module("howdah.jobs.clusters", "agent", home), stdin=subprocess.PIPE,
                stdout=log, stderr=log, cwd=home,
                env=isolation.environment() | web.trust_elsewhere()
                | {**env, "LOG_DIRS": home, "TMPDIR": home},
                preexec_fn=lambda: die_with_parent(signal.SIGKILL, mine),
            )  # fmt: skip
        child.communicate(json.dumps(payload).encode())
        return child.returncode
    finally:
        if not shared:  # nothing is lost: the ranks' logs are in the run directory
            shutil.rmtree(home, ignore_errors=True)
