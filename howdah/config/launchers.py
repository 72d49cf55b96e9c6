"""The launchers whose ranks find their place by environment variables, in one table.

The ranks' environment (howdah/process/env.py), the choice of a Comm (training/comm/backends.py) and
help read it. `training/launch/command.py` makes the command lines of the planner's short runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from howdah.errors import ConfigError, UsageError

CommKind = Literal["horovod", "torch"]
"""What carries the ranks' collectives, Horovod or torch.distributed: training/comm/backends.py has
a Comm of each kind."""

CommChoice = Literal["auto", "horovod", "torch"]
"""`training.comm`: a kind, or the launcher's."""

CARRIES: dict[CommKind, tuple[str, ...]] = {
    "horovod": ("tensorflow", "torch"), "torch": ("torch",),
}  # fmt: skip
"""The frameworks whose ranks each kind connects."""


@dataclass(frozen=True)
class RankVariables:
    """Names of the environment variables with a process's rank and the world's size."""

    rank: str
    size: str
    local_rank: str
    local_size: str


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """One way to start the ranks of a job."""

    title: str
    """Name in messages."""
    variables: RankVariables
    command: str
    """How it starts `np` ranks of a Python module, up to `-m`."""
    comm: CommKind
    """What carries the collectives of its ranks, unless `training.comm` names another."""
    package: str
    """The package that installs its program."""
    checks: tuple[str, ...] = ()
    """The checks of `howdah doctor` that must pass where it starts ranks, besides common ones."""
    prefix: str | None = None
    """Pattern of what it puts before each line of a rank; None: nothing."""
    failure_report: str
    """Pattern of the beginning of its own report of a failed job."""


LAUNCHERS: dict[str, Launcher] = {
    # Its variables are those of jobs on YARN too, whose agents set them (jobs/world.py).
    "horovodrun": Launcher(
        title="Horovod",
        variables=RankVariables(
            "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"
        ),
        command="horovodrun --gloo -np {np} python",
        comm="horovod",
        package="the Horovod wheel",
        checks=("Horovod",),
        prefix=r"\[\d+\]<std(?:out|err)>: ?",  # "[0]<stderr>:step 10/60 ..."
        failure_report=r"Process \d+ exit with status|Terminating remaining workers"
        r"|Traceback \(most recent call last\)|Killed$",  # Horovod 0.28
    ),
    "mpirun": Launcher(
        title="Open MPI",
        variables=RankVariables(
            "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
        command="mpirun -np {np} --bind-to none python",
        comm="horovod",
        package="openmpi-bin",
        checks=("MPI", "Horovod"),
        failure_report=r"Primary job +terminated|mpirun (detected|noticed)",  # Open MPI 4
    ),
    # The same variables are set by TorchDistributor, Ray Train and Kubernetes' PyTorchJob.
    "torchrun": Launcher(
        title="torchrun",
        variables=RankVariables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        command="torchrun --nproc-per-node {np}",
        comm="torch",
        package="PyTorch, as pip install 'howdah[torch]' does",
        # Not its other warnings: what follows them is the ranks'. torch 2.13
        failure_report=r"[WE]\d{4} [\d:.]+ \d+ torch/distributed/elastic/.*"
        r"(Sending process|failed \(exitcode|death signal|Unable to shutdown|did not exit)"
        r"|Traceback \(most recent call last\)",
    ),
}  # fmt: skip
"""In the order in which a process looks for their variables. A rank of an MPI job on YARN has the
variables of both, and the agent's (Horovod's) are right: Open MPI takes a container for a host."""


def either() -> str:
    """The names, for help and messages: "horovodrun or mpirun"."""
    *others, last = LAUNCHERS
    return f"{', '.join(others)} or {last}"


def require(name: str, *, where: str | None = None) -> Launcher:
    """The launcher of that name.

    Args:
        where: the option or key that gave the name.
    Raises:
        UsageError: no launcher has it.
    """
    if name not in LAUNCHERS:
        raise UsageError("unknown launcher", where=where, expected=either(), got=repr(name))
    return LAUNCHERS[name]


def refuse(name: str, np: int) -> None:
    """Say how ranks are started with a launcher of one's own.

    Raises:
        UsageError: always.
    """
    row = require(name, where="--launcher")
    command = row.command.format(np=np)
    raise UsageError(
        "`howdah train` starts its ranks itself, as a job on this machine",
        where=f"--launcher {name}",
        expected="no --launcher",
        remedy=f"leave it out, or start {row.title} yourself: {command} -m howdah.training"
        " --config run.yaml",
    )


def require_carrier(launcher: Launcher, framework: str, choice: CommChoice) -> None:
    """Refuse ranks whose sums nothing would carry.

    Args:
        framework: `training.framework`.
        choice: `training.comm`.
    Raises:
        ConfigError: the launcher starts no ranks of the framework, or none that the carrier joins.
    """
    if framework not in CARRIES[launcher.comm]:
        able = [name for name, row in LAUNCHERS.items() if framework in CARRIES[row.comm]]
        raise ConfigError(
            f"{launcher.title} starts ranks of torch.distributed, which {framework} cannot join",
            where=f"training.framework: {framework}",
            expected=f"training.framework: {' or '.join(CARRIES[launcher.comm])}",
            remedy=f"start it with {' or '.join(able)}; `howdah train` needs none",
        )
    if launcher.comm == "torch" and choice == "horovod":
        raise ConfigError(
            f"Horovod cannot join ranks that {launcher.title} has started",
            where="training.comm: horovod",
            expected="training.comm: auto or torch",
            remedy="leave training.comm out, or start the ranks with mpirun or horovodrun",
        )


def started_by(environ: Mapping[str, str]) -> Launcher | None:
    """The launcher whose variables a process's environment has; None: no launcher started it."""
    for row in LAUNCHERS.values():
        if {row.variables.rank, row.variables.size} <= environ.keys():
            return row
    return None
