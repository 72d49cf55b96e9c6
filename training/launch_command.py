"""The command line and the environment that `howdah train` starts ranks with: pure functions."""

from __future__ import annotations

import math
import os
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Literal

import training
from howdah.errors import ClusterError, UsageError

__all__ = ["LAUNCHERS", "command", "environment", "shown"]

LAUNCHERS = ("mpirun", "horovodrun")
Launcher = Literal["mpirun", "horovodrun"]


def command(
    config_path: str,
    *,
    np: int,
    launcher: Launcher,
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
        launcher: mpirun or horovodrun.
        hosts: "node1:2,node2:2"; None: this machine.
        cores: of this machine.
        is_root: Open MPI wants to be told that root is meant.
        grace_seconds: what the launcher leaves the other ranks when one has ended: rank 0 saves.
            mpirun waits so long before its SIGTERM and again before its SIGKILL.
        search_path: where to look for the launchers; None: PATH.
        rank: what each rank runs; None: a training.
    Raises:
        ClusterError: the launcher is not installed.
        UsageError: the words are off.
    """
    if launcher not in LAUNCHERS:
        raise UsageError("unknown launcher", expected=" or ".join(LAUNCHERS), got=repr(launcher))
    if np < 1:
        raise UsageError("a job needs at least one rank", expected="--np 1 or more", got=str(np))
    grace = str(math.ceil(grace_seconds))
    rank = rank or [sys.executable, "-m", "training", "--config", config_path]
    if np == 1 and hosts is None:
        return rank
    if launcher == "horovodrun":
        where = hosts or f"localhost:{np}"
        _find("horovodrun", search_path)
        program = [sys.executable, "-m", "training.horovodrun", grace]
        return [*program, "-np", str(np), "--gloo", "-H", where, *rank]
    words = [_find("mpirun", search_path), "-np", str(np), "--bind-to", "none"]
    if is_root:
        words.append("--allow-run-as-root")
    if hosts is not None:
        # Remote ranks get their environment from mpirun alone.
        words += ["-H", hosts, "-x", "PYTHONPATH", "-x", "HOWDAH_STARTED", "-x", "PATH"]
    else:
        if np > cores:
            words.append("--oversubscribe")
        # All on this machine: no port but on the loopback interface, no ssh asked for.
        words += ["--mca", "plm", "isolated", "--mca", "oob_tcp_if_include", "lo"]
        words += ["--mca", "btl_tcp_if_include", "lo"]
    words += ["--mca", "odls_base_sigkill_timeout", grace]
    return [*words, *rank]


def environment(
    base: Mapping[str, str], *, terminal: str | None, scratch: str | None
) -> dict[str, str]:
    """The environment of the ranks. What each rank can set for itself, it does (training/env.py).

    Args:
        base: the environment to start from.
        terminal: path of the terminal on which rank 0 may draw its bar; None: there is none.
        scratch: directory for mpirun's own files, which it leaves behind when it is killed;
            None: its own choice (on other machines the directory is not there).
    """
    env = dict(base)
    env["HOWDAH_STARTED"] = repr(time.time())  # rounded, it could lie in the future
    env.pop("HOWDAH_TTY", None)
    if terminal is not None:
        env["HOWDAH_TTY"] = terminal
    # The ranks must find the very packages that this process runs.
    home = os.path.dirname(os.path.dirname(os.path.abspath(training.__file__)))
    parts = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
    if home not in parts:
        parts.insert(0, home)
    env["PYTHONPATH"] = os.pathsep.join(parts)
    # horovodrun starts `python` by name in places.
    here = os.path.dirname(sys.executable)
    if here not in env.get("PATH", "").split(os.pathsep):
        env["PATH"] = os.pathsep.join([here, env.get("PATH", os.defpath)])
    if scratch is not None:
        env["OMPI_MCA_orte_tmpdir_base"] = scratch
    return env


def _find(program: str, search_path: str | None) -> str:
    beside = os.path.join(os.path.dirname(sys.executable), program)
    if search_path is None and os.access(beside, os.X_OK):
        return beside
    found = shutil.which(program, path=search_path)
    if found is None:
        package = {"mpirun": "openmpi-bin", "horovodrun": "the Horovod wheel"}[program]
        raise ClusterError(
            f"{program} is not installed",
            where=f"PATH={search_path or os.environ.get('PATH', '')}",
            expected=program,
            remedy=f"`make setup` installs {package}; `howdah doctor` shows what is missing; one"
            " rank (--np 1) needs no launcher",
        )
    return found


def shown(argv: Sequence[str]) -> str:
    """The command as it can be pasted into a shell."""
    return shlex.join(argv)
