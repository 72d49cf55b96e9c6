"""Chooses the Comm of a world by its launcher (howdah/config/launchers.py).

Horovod's (horovod_torch.py, horovod_tf.py) or, in a world of one, SoloComm.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from howdah.config.launchers import CommKind, either, started_by
from howdah.errors import ClusterError, UsageError
from training.comm.base import Comm, SoloComm, Waits
from training.comm.connections import Connections
from training.process.env import rank_env

__all__ = ["COMMS", "implementation", "init"]


def init(
    framework: str, waits: Waits | None = None, connections: Connections | None = None
) -> Comm:
    """Join the world that a launcher has started, or form a world of one.

    Args:
        framework: "tensorflow" or "torch"; training/process/env.py has prepared the process for it.
        waits: counts the time in collectives.
        connections: collects those to the other ranks; another thread may shut them, also while
            the world forms.
    Raises:
        ClusterError: the launcher's library is missing or lacks the framework, or it found another
            world than the launcher's.
        RankLost: a rank was lost while the world formed.
    """
    here, launcher = rank_env(), started_by(os.environ)
    if launcher is None or here.size == 1:
        return SoloComm(waits)
    comm = implementation(launcher.comm, framework)(waits, connections)
    if (comm.rank, comm.size) != (here.rank, here.size):
        raise ClusterError(
            f"{launcher.comm.capitalize()} found another world than the launcher's",
            expected=f"rank {here.rank} of {here.size} ({launcher.title})",
            got=f"rank {comm.rank} of {comm.size}",
            remedy=f"start it with one launcher: `howdah train`, {either()}",
        )
    return comm


def implementation(kind: CommKind, framework: str) -> type[Comm]:
    """The Comm class of a kind for a framework; imports its library and the framework.

    Raises:
        ClusterError: the library is missing, or lacks the framework.
        UsageError: no such framework.
    """
    return COMMS[kind](framework)


def _horovod(framework: str) -> type[Comm]:
    try:
        if framework == "tensorflow":
            from training.comm.horovod_tf import HorovodTfComm

            return HorovodTfComm
        if framework == "torch":
            from training.comm.horovod_torch import HorovodTorchComm

            return HorovodTorchComm
    except ImportError as error:
        raise ClusterError(
            f"Horovod for {framework} cannot be loaded, and {rank_env().size} ranks need it",
            got=str(error),
            remedy="run `make setup`, which builds it; `howdah doctor` says what is missing",
        ) from error
    raise UsageError("unknown framework", expected="tensorflow or torch", got=repr(framework))


COMMS: dict[CommKind, Callable[[str], type[Comm]]] = {"horovod": _horovod}
"""For each kind: the function that imports and returns the Comm class for a framework."""
