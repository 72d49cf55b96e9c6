"""The command line and the environment that `howdah train` starts ranks with: pure functions."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from howdah.config.launchers import LAUNCHERS, require
from howdah.errors import ClusterError, UsageError
from howdah.process import isolation
from howdah.process.env import STORE


def command(
    config_path: str,
    *,
    np: int,
    launcher: str,
    hosts: str | None = None,
    cores: int,
    is_root: bool,
    grace_seconds: float = 30.0,
    search_path: str | None = None,
    rank: Sequence[str] | None = None,
) -> list[str]:
    """The argument list that starts `np` ranks; one rank is started without a launcher.

    Args:
        config_path: the frozen configuration.
        np: ranks.
        launcher: one of LAUNCHERS.
        hosts: "node1:2,node2:2"; None: this machine.
        cores: of this machine.
        is_root: Open MPI needs an option to run as root.
        grace_seconds: what the launcher leaves the other ranks when one has ended: rank 0 saves.
            mpirun waits so long before its SIGTERM and again before its SIGKILL; the others send
            SIGTERM at once.
        search_path: where to look for the launchers; None: PATH.
        rank: what each rank runs; None: a training.
    Raises:
        ClusterError: the launcher is not installed.
        UsageError: arguments do not fit.
    """
    require(launcher)
    if np < 1:
        raise UsageError("a job needs at least one rank", expected="--np 1 or more", got=str(np))
    rank = rank or isolation.module("howdah.training", "--config", config_path)
    if np == 1 and hosts is None:
        return rank
    program = _find(launcher, search_path)
    job = _Job(program, np, hosts, cores, is_root, str(math.ceil(grace_seconds)))
    return [*_ARGUMENTS[launcher](job), *rank]


@dataclass(frozen=True)
class _Job:
    """What a launcher's own arguments depend on."""

    program: str
    np: int
    hosts: str | None
    cores: int
    is_root: bool
    grace: str
    """Whole seconds."""


def _horovodrun(job: _Job) -> list[str]:
    program = isolation.module("howdah.training.launch.horovodrun", job.grace)
    return [*program, "-np", str(job.np), "--gloo", "-H", job.hosts or f"localhost:{job.np}"]


def _mpirun(job: _Job) -> list[str]:
    arguments = [job.program, "-np", str(job.np), "--bind-to", "none"]
    if job.is_root:
        arguments.append("--allow-run-as-root")
    if job.hosts is not None:
        # Remote ranks get their environment from mpirun alone.
        arguments += ["-H", job.hosts, "-x", "HOWDAH_STARTED", "-x", "PATH"]
        # mpirun warns of one that is not set
        for name in (*isolation.VARIABLES, isolation.VARIABLE):
            arguments += ["-x", name] if name in isolation.environment() else []
    else:
        if job.np > job.cores:
            arguments.append("--oversubscribe")
        # All on this machine: messages go by the loopback interface, and no ssh is asked for. Open
        # MPI 4 listens on all interfaces all the same.
        arguments += ["--mca", "plm", "isolated", "--mca", "oob_tcp_if_include", "lo"]
        arguments += ["--mca", "btl_tcp_if_include", "lo"]
    return [*arguments, "--mca", "odls_base_sigkill_timeout", job.grace]


def _torchrun(job: _Job) -> list[str]:
    if job.hosts is not None:
        raise UsageError(
            "torchrun starts ranks on its own machine only",
            where="hosts",
            expected="none with --launcher torchrun",
            got=job.hosts,
            remedy="on each machine start `torchrun --nnodes N --node-rank I --master-addr HOST"
            " --nproc-per-node K -m howdah.training --config ...`, or take mpirun or horovodrun",
        )
    program = isolation.module("howdah.training.launch.torchrun", job.grace)
    return [*program, "--nnodes", "1", "--nproc-per-node", str(job.np), "--no-python"]


_ARGUMENTS: dict[str, Callable[[_Job], list[str]]] = {
    "horovodrun": _horovodrun, "mpirun": _mpirun, "torchrun": _torchrun,
}  # fmt: skip
"""For each of LAUNCHERS: its arguments, before those of a rank."""


def environment(
    base: Mapping[str, str], *, terminal: str | None, scratch: str | None
) -> dict[str, str]:
    """The environment of the ranks. What each rank can set for itself, it does
    (howdah/process/env.py).

    Args:
        base: the environment to start from.
        terminal: path of the terminal on which rank 0 may draw its bar; None: there is none.
        scratch: directory for the launcher's own files, which mpirun and torchrun leave behind when
            they are killed, and for the file through which ranks of torch.distributed meet; None:
            the launcher's own choice (on other machines the directory is not there).
    """
    env = isolation.environment(base)
    env["HOWDAH_STARTED"] = repr(time.time())  # rounded, it could lie in the future
    env.pop("HOWDAH_TTY", None)
    if terminal is not None:
        env["HOWDAH_TTY"] = terminal
    # horovodrun starts `python` by name in places.
    here = os.path.dirname(sys.executable)
    if here not in env.get("PATH", "").split(os.pathsep):
        env["PATH"] = os.pathsep.join([here, env.get("PATH", os.defpath)])
    if scratch is not None:
        env["OMPI_MCA_orte_tmpdir_base"] = scratch
        env[STORE] = os.path.join(scratch, "ranks")
    return env


def _find(program: str, search_path: str | None) -> str:
    beside = os.path.join(os.path.dirname(sys.executable), program)
    if search_path is None and os.access(beside, os.X_OK):
        return beside
    found = shutil.which(program, path=search_path)
    if found is None:
        raise ClusterError(
            f"{program} is not installed",
            where=f"PATH={search_path or os.environ.get('PATH', '')}",
            expected=program,
            remedy=f"`make setup` installs {LAUNCHERS[program].package}; `howdah doctor` shows what"
            " is missing; PyTorch brings a launcher of its own (--launcher torchrun), and one rank"
            " (--np 1) needs none",
        )
    return found


def shown(argv: Sequence[str]) -> str:
    """The command as it can be pasted into a shell."""
    return shlex.join(argv)
