"""Workers in a Ray cluster: an actor each.

Ray's processes listen on more than loopback (docs/places.md lists what); since 2.60 a token guards
them. A Ray of our own gets a token file of its own, which must be there before `import ray`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from howdah.config.model import Config
from howdah.core.processes import session_members
from howdah.errors import ClusterError
from howdah.jobs.backend import Container
from howdah.jobs.clusters.backend import CallsDriver
from howdah.jobs.clusters.worker import Assignment, run_agent
from howdah.process import isolation
from howdah.ray_home import RayHome

_OBJECT_STORE_BYTES = 100 * 2**20  # nothing of a job passes through it
_MESSAGE_CHARACTERS = 500
_NODE_DIED = "node has died"
"""In the message of Ray's ActorDiedError; it has no field for it."""


@contextmanager
def cluster(config: Config) -> Iterator[tuple[Any, str]]:
    """Ray, and this machine's address on its network: one of our own, or the one at `ray.address`.

    Raises:
        ClusterError: it does not start, or does not answer.
    """
    if config.ray.address is not None:
        with _connected(config, address=config.ray.address) as ray:
            yield ray, ray.util.get_node_ip_address()
        return
    home = RayHome.make()
    with _swept(home.root):
        os.environ.pop("RAY_AUTH_TOKEN", None)
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": home.token}
        with _connected(
            config, address="local", num_cpus=config.job.most * config.job.worker.vcores,
            include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES,
            _temp_dir=home.temporary,
            runtime_env={"env_vars": _paths()},
        ) as ray:  # fmt: skip
            home.require_private()
            yield ray, "127.0.0.1"


def _paths() -> dict[str, str]:
    """What Ray's workers import from: as this process, and not the working directory."""
    env = isolation.environment()
    return {name: env.get(name, "") for name in isolation.VARIABLES}


@contextmanager
def _connected(config: Config, *, address: str, **settings: Any) -> Iterator[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    import ray

    own = config.ray.address is None
    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, **settings)
    except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
        raise ClusterError(
            "Ray does not start" if own else "the Ray cluster does not answer",
            where="this machine" if own else address, got=str(error)[:_MESSAGE_CHARACTERS],
            remedy="look into the driver's log" if own else
            "is the address right, and does RAY_AUTH_TOKEN_PATH name the cluster's token?",
        ) from error  # fmt: skip
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _swept(place: str) -> Iterator[None]:
    """Have a process of another session end what is left of Ray after this one, even a killed one:
    some of Ray's processes outlive a raylet that was killed."""
    # `howdah submit` gives a driver a session of its own; any other one is a terminal's.
    session = os.getpid() if os.getsid(0) == os.getpid() else 0
    process = subprocess.Popen(
        isolation.module("howdah.jobs.clusters", "sweep", place, str(session)),
        env=isolation.environment(), stdin=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        yield
    finally:
        process.communicate()


def sweep(place: str, session: int) -> None:
    """Wait for the end of standard input, then end the other processes of a driver's session and
    remove its Ray's directory.

    Args:
        session: its id, which is the driver's process id; 0: remove the directory alone.
    """
    while sys.stdin.buffer.read(1):
        pass
    for pid in session_members(session) if session else ():
        if pid != session:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(place, ignore_errors=True)


@dataclass
class _Call:
    """One actor: where it is, and its agent's exit code."""

    actor: Any
    up: Any
    done: Any
    node: str = ""
    ended: Container | None = None


class RayDriver(CallsDriver[_Call]):
    """Containers are actors."""

    def __init__(self, ray: Any, config: Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ray, self._worker = ray, config.job.worker
        self._actor = ray.remote(_Place)
        self._of_ours = config.ray.address is None

    def begin(self, assignment: Assignment) -> _Call:
        options: dict[str, Any] = {
            "num_cpus": self._worker.vcores, "max_restarts": 0, "max_task_retries": 0,
            "name": assignment.container,
        }  # fmt: skip
        if self._worker.gpus:
            options["num_gpus"] = self._worker.gpus
        if not self._of_ours:
            options["memory"] = self._worker.memory
        actor = self._actor.options(**options).remote()
        return _Call(actor, actor.where.remote(), actor.run.remote(assignment))

    def look(self, name: str, call: _Call) -> Container:
        if call.ended is None:
            call.ended = self._look_at(name, call)
            if call.ended is not None:  # an actor whose method has returned keeps its cores
                self.end(name, call)
        if call.ended is not None:
            return call.ended
        return Container(name, call.node, "running" if call.node else "requested")

    def _look_at(self, name: str, call: _Call) -> Container | None:
        """The container if it has ended."""
        from ray.exceptions import ActorUnavailableError, RayError

        try:
            if not call.node and self._ray.wait([call.up], timeout=0)[0]:
                call.node = self._ray.get(call.up)
            if not self._ray.wait([call.done], timeout=0)[0]:
                return None
            code = self._ray.get(call.done)
        except RayError as error:
            # Unavailable: the connection broke, and with it the way to the agent's exit code.
            lost = isinstance(error, ActorUnavailableError) or _NODE_DIED in str(error)
            reason, text = "lost" if lost else "failed", str(error)[:_MESSAGE_CHARACTERS]
            return Container(name, call.node, "ended", 1, reason, text)
        return Container(name, call.node, "ended", code, "failed" if code else None)

    def end(self, name: str, call: _Call) -> None:
        self._ray.kill(call.actor, no_restart=True)


class _Place:
    """The actor; Ray sets CUDA_VISIBLE_DEVICES in its process."""

    def where(self) -> str:
        return socket.gethostname()

    def run(self, assignment: Assignment) -> int:
        return run_agent(assignment, {})
