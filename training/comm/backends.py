"""Chooses the Comm of a world by its launcher (howdah/config/launchers.py) and `training.comm`.

It is Horovod's (horovod_torch.py, horovod_tf.py), torch.distributed's (distributed_torch.py) or, in
a world of one, SoloComm.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from howdah.config import launchers
from howdah.config.launchers import CommChoice, CommKind, Launcher, either, started_by
from howdah.config.training import TrainingSection
from howdah.core import gpus
from howdah.errors import ClusterError, ConfigError, UsageError
from howdah.process.env import rank_env
from howdah.training.comm.base import Comm, SoloComm, Waits
from howdah.training.comm.connections import Connections


def init(
    framework: str,
    waits: Waits | None = None,
    connections: Connections | None = None,
    *,
    choice: CommChoice = "auto",
    limit: float | None = None,
) -> Comm:
    """Join the world that a launcher has started, or form a world of one.

    Args:
        framework: "tensorflow" or "torch"; howdah/process/env.py has prepared the process for it.
        waits: counts the time in collectives.
        connections: collects the connections to the other ranks; another thread may shut them, even
            while the world forms.
        choice: `training.comm`.
        limit: seconds after which a collective of torch.distributed fails; None: no limit.
    Raises:
        ClusterError: the library is missing or lacks the framework, or it found another world than
            the launcher's.
        ConfigError: no library carries collectives of this framework under this launcher.
        RankLost: a rank was lost while the world formed.
    """
    here, launcher = rank_env(), started_by(os.environ)
    if launcher is None or here.size == 1:
        return SoloComm(waits)
    comm = COMMS[carrier(launcher, framework, choice)](framework)(waits, connections, limit)
    if (comm.rank, comm.size) != (here.rank, here.size):
        raise ClusterError(
            f"{comm.backend} and the launcher disagree about the world",
            expected=f"rank {here.rank} of {here.size} ({launcher.title})",
            got=f"rank {comm.rank} of {comm.size}",
            remedy=f"start it with one launcher: `howdah train`, {either()}",
        )
    return comm


def carrier(launcher: Launcher, framework: str, choice: CommChoice = "auto") -> CommKind:
    """The library that carries the collectives of the ranks that a launcher starts.

    Args:
        choice: `training.comm`.
    Raises:
        ConfigError: there is no such library.
    """
    launchers.require_carrier(launcher, framework, choice)
    if choice != "auto":
        return choice
    if launcher.comm == "horovod" and framework == "torch":
        from howdah.doctor.packages import horovod_carries

        if not horovod_carries(framework, gpu=bool(gpus.usable().devices)):
            return "torch"
    return launcher.comm


def require_parallel(launcher: Launcher, training: TrainingSection) -> None:
    """Refuse to divide the model if the library of these ranks cannot do it.

    Raises:
        ConfigError: it needs torch.distributed, but Horovod would carry the collectives.
    """
    if training.parallel.shard != "full":
        return
    if carrier(launcher, training.framework, training.comm) == "torch":
        return
    raise ConfigError(
        "training.parallel.shard: full needs torch.distributed, but Horovod connects these ranks",
        where="training.parallel.shard: full",
        got=f"training.comm: {training.comm}, and ranks that {launcher.title} starts",
        remedy="set training.comm to torch, or start the ranks with torchrun;"
        " training.parallel.shard: optimizer works with Horovod too",
    )


def horovod_installed(framework: str) -> bool:
    """True if Horovod is installed for the framework; imports neither."""
    from howdah.doctor.packages import horovod_libraries

    return framework in (horovod_libraries() or {})


def _horovod(framework: str) -> type[Comm]:
    try:
        if framework == "tensorflow":
            from howdah.training.comm.horovod_tf import HorovodTfComm

            return HorovodTfComm
        if framework == "torch":
            from howdah.training.comm.horovod_torch import HorovodTorchComm

            return HorovodTorchComm
    except ImportError as error:
        raise ClusterError(
            f"Horovod for {framework}, which {rank_env().size} ranks need, cannot be loaded",
            got=str(error),
            remedy="run `make setup`, which builds it; `howdah doctor` shows what is missing",
        ) from error
    raise UsageError("unknown framework", expected="tensorflow or torch", got=repr(framework))


def _torch(framework: str) -> type[Comm]:
    try:
        from howdah.training.comm.distributed_torch import TorchComm
    except ImportError as error:
        raise ClusterError(
            f"torch.distributed, which {rank_env().size} ranks need, cannot be loaded",
            got=str(error),
            remedy="reinstall PyTorch: pip install 'howdah[torch]'",
        ) from error
    return TorchComm


COMMS: dict[CommKind, Callable[[str], type[Comm]]] = {"horovod": _horovod, "torch": _torch}
"""{kind: function that imports and returns the Comm class for a framework}; the class takes (waits,
connections, limit). The function raises ClusterError if the library is missing, or lacks the
framework."""
