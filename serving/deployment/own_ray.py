"""A private Ray instance: it starts and stops with this process, and has its own auth token."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import time
from collections.abc import Iterator

from howdah.core import processes
from howdah.errors import ClusterError, Terminated, UsageError
from howdah.ray_home import RayHome

_STORE_BYTES = 128 * 2**20
_GONE_SECONDS = 10.0
_PACKAGES = ("ray", "fastapi", "uvicorn", "prometheus_client")


def require_ray() -> None:
    """Require Ray Serve.

    Raises:
        UsageError: it is not installed.
    """
    if any(importlib.util.find_spec(name) is None for name in _PACKAGES):
        raise UsageError(
            "Ray Serve is not installed", remedy="pip install 'howdah[ray]' where howdah is"
        )


@contextlib.contextmanager
def own_ray(cores: int) -> Iterator[None]:
    """Start a Ray of `cores` on this machine; at the end, none of its processes is left.

    A process that can reach Ray's ports and has its token can run code as this user. Ray listens on
    all interfaces, so the token is random, in a directory that no other user may read.

    Raises:
        ClusterError: Ray does not start.
        PermissionDenied: other users could reach the token.
    """
    home = RayHome.make()
    variables = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": home.token,
        "RAY_AUTH_TOKEN": None,
        "RAY_ADDRESS": None,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    others = set(processes.descendants(os.getpid()))
    processes.adopt_orphans()
    try:
        with processes.environ(variables):  # read when ray is imported
            try:
                _start(home.temporary, cores)
                home.require_private()
                yield
            finally:
                _end(others)
    finally:
        shutil.rmtree(home.root, ignore_errors=True)


def _start(root: str, cores: int) -> None:
    import logging

    import ray

    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        ray.init(
            address="local", num_cpus=cores, include_dashboard=False, log_to_driver=False,
            logging_level=logging.ERROR, object_store_memory=_STORE_BYTES, _temp_dir=root,
            _node_ip_address="127.0.0.1",
        )  # fmt: skip
    except Exception as error:  # noqa: BLE001 - Ray raises a bare Exception after 30 s
        raise ClusterError(
            "Ray does not start on this machine",
            where=root,
            got=str(error).splitlines()[0] if str(error) else type(error).__name__,
            remedy="look at memory and /dev/shm (`howdah doctor`), then try again",
        ) from None
    except SystemExit:  # raised by Ray's own handler
        raise Terminated("terminated (SIGTERM) while Ray was starting") from None
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _end(others: set[int]) -> None:
    """Shut Ray down, then kill its remaining processes, even if a signal interrupts this."""
    import ray

    try:
        ray.shutdown()
    finally:
        deadline = time.monotonic() + _GONE_SECONDS
        while left := set(processes.descendants(os.getpid())) - others:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            processes.reap()
            if time.monotonic() > deadline:
                break
            time.sleep(0.02)
        processes.reap()
