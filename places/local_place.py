"""Workers on this machine: a process each, in a session of its own, which ends as a whole."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict

from howdah import isolation
from howdah.core.child import Child
from jobs.backend import Container
from places.backend import CallsDriver
from places.worker import Assignment

__all__ = ["LocalDriver"]

_TERM_SECONDS = 0.25
"""Between SIGTERM and SIGKILL, as YARN's NodeManager has it."""


class LocalDriver(CallsDriver[Child]):
    """Containers are processes."""

    def begin(self, assignment: Assignment) -> Child:
        home = os.path.join(assignment.directory, "containers", assignment.container)
        os.makedirs(home, mode=0o700)
        with tempfile.TemporaryFile() as stdin:  # without a name: it holds the job's key
            stdin.write(json.dumps({**asdict(assignment), "home": home}).encode())
            stdin.seek(0)
            # The kernel's signal at a parent's end is for that of a thread, and this one may end:
            # an agent that hears nothing of its driver ends by itself.
            return Child(
                isolation.module("places", "agent", home), cwd=home,
                env=isolation.environment() | {"LOG_DIRS": home}, stdin=stdin,
                output=os.path.join(home, "agent.log"), grace=_TERM_SECONDS, death_signal=None,
            )  # fmt: skip

    def look(self, name: str, call: Child) -> Container:
        node, code = os.uname().nodename, call.code
        if code is None:
            return Container(name, node, "running")
        return Container(name, node, "ended", code, "failed" if code else None)

    def end(self, name: str, call: Child) -> None:
        call.end(group=True)
