"""The launchers whose ranks find their place by environment variables, in one table.

The ranks' environment (howdah/process/env.py), the choice of a Comm (training/comm/backends.py),
`howdah doctor` and help read it. `howdah train --np N` needs none of them: its ranks are a job's.
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
    """One way to start ranks."""

    title: str
    """Name in messages."""
    variables: RankVariables
    command: str
    """How it starts `np` ranks of a Python module, up to the module's name."""
    comm: CommKind
    """What carries the collectives of its ranks, unless `training.comm` names another."""
    checks: tuple[str, ...] = ()
    """The checks of `howdah doctor` that must pass where it starts ranks, besides common ones."""


LAUNCHERS: dict[str, Launcher] = {
    # Its variables are those of jobs on YARN too, whose agents set them (jobs/world.py).
    "horovodrun": Launcher(
        title="Horovod",
        variables=RankVariables(
            "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"
        ),
        command="horovodrun --gloo -np {np} python -m",
        comm="horovod",
        checks=("Horovod",),
    ),
    "mpirun": Launcher(
        title="Open MPI",
        variables=RankVariables(
            "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
        ),
        command="mpirun -np {np} --bind-to none python -m",
        comm="horovod",
        checks=("MPI", "Horovod"),
    ),
    # The same variables are set by TorchDistributor, Ray Train and Kubernetes' PyTorchJob.
    "torchrun": Launcher(
        title="torchrun",
        variables=RankVariables("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        command="torchrun --nproc-per-node {np} -m",
        comm="torch",
    ),
}  # fmt: skip
"""The launchers, in the order in which a process looks for their variables. A rank of an MPI job on
YARN has the variables of both, and the agent's (Horovod's) are right: Open MPI takes a container
for a host."""


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
        remedy = f"name one of them, or leave {where} out" if where else None
        raise UsageError(
            "unknown launcher", where=where, expected=either(), got=repr(name), remedy=remedy
        )
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
        remedy=f"leave it out, or start {row.title} yourself: {command} howdah.training"
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
