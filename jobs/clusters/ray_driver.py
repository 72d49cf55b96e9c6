"""Workers in a Ray cluster, each an actor.

Ray's processes listen on more than loopback (docs/clusters.md has the list); since 2.60 a token
guards them. A private Ray gets its own token file, which must exist before `import ray`.
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

_OBJECT_STORE_BYTES = 100 * 2**20  # small, since a job puts nothing into it
_MESSAGE_CHARACTERS = 500
_NODE_DIED = "node has died"
"""Text in the message of Ray's ActorDiedError, which has no field for the reason."""


@contextmanager
def cluster(config: Config) -> Iterator[tuple[Any, str]]:
    """Ray at `ray.address`, or else a private one, and this machine's address on its network.

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
        # Ray's workers import what this process imports, without the working directory.
        env = isolation.environment()
        paths = {name: env.get(name, "") for name in isolation.VARIABLES}
        with _connected(
            config, address="local", num_cpus=config.job.most * config.job.worker.vcores,
            include_dashboard=False, object_store_memory=_OBJECT_STORE_BYTES,
            _temp_dir=home.temporary, runtime_env={"env_vars": paths},
        ) as ray:  # fmt: skip
            home.require_private()
            yield ray, "127.0.0.1"


@contextmanager
def _connected(config: Config, *, address: str, **settings: Any) -> Iterator[Any]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    import ray

    try:
        ray.init(address=address, log_to_driver=False, configure_logging=False, **settings)
    except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
        got = str(error)[:_MESSAGE_CHARACTERS]
        if config.ray.address is None:
            raise ClusterError("Ray does not start on this machine", got=got) from error
        raise ClusterError(
            "the Ray cluster does not answer",
            where=address,
            got=got,
            remedy="check the address, and that RAY_AUTH_TOKEN_PATH names the cluster's token",
        ) from error
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def _swept(place: str) -> Iterator[None]:
    """Start a process in another session that ends the rest of Ray after this process, even if it
    is killed: some of Ray's processes outlive a raylet that was killed."""
    # `howdah submit` starts a driver in a new session; any other session is a terminal's.
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
        session: the session's id, which is the driver's process id; 0: only remove the directory.
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
    """One actor, with the futures of its node and of its agent's exit code."""

    actor: Any
    up: Any
    done: Any
    node: str = ""
    ended: Container | None = None


class RayDriver(CallsDriver[_Call]):
    """The backend whose containers are actors."""

    def __init__(self, ray: Any, config: Config, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._ray, self._worker = ray, config.job.worker
        self._actor = ray.remote(_Place)
        self._private = config.ray.address is None

    def begin(self, assignment: Assignment) -> _Call:
        options: dict[str, Any] = {
            "num_cpus": self._worker.vcores, "max_restarts": 0, "max_task_retries": 0,
            "name": assignment.container,
        }  # fmt: skip
        if self._worker.gpus:
            options["num_gpus"] = self._worker.gpus
        if not self._private:
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
        """The container if it has ended; None: it has not."""
        from ray.exceptions import ActorUnavailableError, RayError

        try:
            if not call.node and self._ray.wait([call.up], timeout=0)[0]:
                call.node = self._ray.get(call.up)
            if not self._ray.wait([call.done], timeout=0)[0]:
                return None
            code = self._ray.get(call.done)
        except RayError as error:
            # Unavailable: the connection broke, and the agent's exit code can no longer be read.
            lost = isinstance(error, ActorUnavailableError) or _NODE_DIED in str(error)
            reason, text = "lost" if lost else "failed", str(error)[:_MESSAGE_CHARACTERS]
            return Container(name, call.node, "ended", 1, reason, text)
        return Container(name, call.node, "ended", code, "failed" if code else None)

    def end(self, name: str, call: _Call) -> None:
        self._ray.kill(call.actor, no_restart=True)


class _Place:
    """The actor's class; Ray sets CUDA_VISIBLE_DEVICES in its process."""

    def where(self) -> str:
        return socket.gethostname()

    def run(self, assignment: Assignment) -> int:
        return run_agent(assignment, {})
