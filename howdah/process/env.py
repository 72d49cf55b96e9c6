"""The environment of a training process, set before any framework is imported.

One framework in a process: with the other one importable, `transformers` would load both and crash
(triton after TensorFlow). Thread counts, the visible GPU and the allocator cannot be changed once a
framework has started, so that all of it happens here, first, under any launcher.
"""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass

from howdah.config.launchers import started_by
from howdah.core import gpus, machine
from howdah.errors import UsageError

STORE = "HOWDAH_STORE"
"""Environment variable of ranks of one machine: a file, new for each start, through which they find
each other for torch.distributed. It takes the place of torch's TCPStore, which listens on all
interfaces and knows no password."""
TERMINAL = "HOWDAH_TTY"
"""Environment variable of ranks that `howdah train` starts: the terminal that rank 0 may draw its
bar on."""
RENDEZVOUS = "HOWDAH_RENDEZVOUS"
"""Environment variable of a job's ranks: host:port on loopback where their agent answers for the
job's rendezvous (training/comm/store_torch.py is its client)."""
JOIN_SECONDS = "HOWDAH_JOIN_SECONDS"
"""Environment variable of a job's ranks: how long one waits for the others while a world forms."""


@dataclass(frozen=True)
class RankEnv:
    """Who this process is in its job, by the launcher's environment variables."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str | None = None
    """Its `launchers.Launcher.title`: Horovod, Open MPI; None: no launcher started the process."""


def rank_env() -> RankEnv:
    """Rank, world size, local rank and local size as the launcher's variables say."""
    launcher = started_by(os.environ)
    if launcher is None:
        return RankEnv()
    names = launcher.variables
    return RankEnv(
        rank=int(os.environ[names.rank]),
        size=int(os.environ.get(names.size, "1")),
        local_rank=int(os.environ.get(names.local_rank, "0")),
        local_size=int(os.environ.get(names.local_size, "1")),
        launcher=launcher.title,
    )


def threads_per_rank(local_size: int) -> int:
    """Compute threads of one of `local_size` ranks on this node: cores / ranks, at least 1."""
    cores = machine.cores()
    # mpirun binds each rank to its own cores by default: the mask is then the rank's share already.
    if os.environ.get("OMPI_MCA_orte_bound_at_launch") == "1":  # noqa: SIM112 - its name
        return cores
    return max(1, cores // local_size)


def prepare(framework: str, *, threads: int | None = None) -> int:
    """Set everything that must be set before `framework` is imported; returns the thread count.

    Args:
        framework: "tensorflow" or "torch".
        threads: compute threads of this process; None: cores / ranks on this node.
    Raises:
        UsageError: the other framework is in this process already, or there are fewer GPUs than
            ranks on this node.
    """
    if framework not in ("tensorflow", "torch"):
        raise UsageError("unknown framework", expected="tensorflow or torch", got=repr(framework))
    other = "torch" if framework == "tensorflow" else "tensorflow"
    if other in sys.modules:
        raise UsageError(
            f"{other} is loaded in this process already, and one process holds one framework",
            expected=f"a process of its own for {framework}",
            remedy="run it through `howdah train` or `python -m howdah.training`",
        )
    here = rank_env()
    count = threads or threads_per_rank(here.local_size)
    os.environ["USE_TF"] = "1" if framework == "tensorflow" else "0"
    os.environ["USE_TORCH"] = "1" if framework == "torch" else "0"
    os.environ["USE_FLAX"] = "0"
    os.environ["TF_USE_LEGACY_KERAS"] = "1"
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
                 "TF_NUM_INTRAOP_THREADS"):  # fmt: skip
        os.environ[name] = str(count)
    # Independent ops of this model are few: beside one thread for products a second one only takes
    # its core. Between nodes it sends on what arrives during the backward pass, which would wait.
    between_nodes = here.size > here.local_size
    os.environ["TF_NUM_INTEROP_THREADS"] = "2" if count > 1 or between_nodes else "1"
    for name, value in (
        ("TF_CPP_MIN_LOG_LEVEL", "2"),
        ("TF_ENABLE_ONEDNN_OPTS", "1"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("TRANSFORMERS_VERBOSITY", "error"),
        ("HF_HUB_DISABLE_PROGRESS_BARS", "1"),
    ):
        os.environ.setdefault(name, value)
    _choose_gpu(here)
    _tune_allocator()
    _allow_open_files()
    return count


def _choose_gpu(here: RankEnv) -> None:
    """Show this rank the one GPU that is its own; nothing to do on a machine without GPUs."""
    if here.local_size == 1:
        return
    devices = gpus.usable().devices
    if not devices:
        return
    if here.local_rank >= len(devices):
        raise UsageError(
            "more ranks than GPUs on this node",
            expected=f"at most {len(devices)} ranks (GPUs {', '.join(devices)})",
            got=f"{here.local_size} ranks",
            remedy="start fewer ranks, or train on the CPU with CUDA_VISIBLE_DEVICES=''",
        )
    os.environ["CUDA_VISIBLE_DEVICES"] = devices[here.local_rank]


def _tune_allocator() -> None:
    """Keep freed activations in the process instead of giving them back to the kernel each step.

    Every step allocates and frees the same large blocks; with glibc's defaults each of them is
    mapped, zeroed page by page, and unmapped again. It is done at run time and not by MALLOC_...
    variables, so that it holds under every launcher.
    """
    machine.map_blocks_from(2**25)  # 32 MiB: the greatest that glibc takes
    machine.keep_free_memory(2**26)


def _allow_open_files() -> None:
    """Raise the limit of open files up to 65,536: each mapped shard and index holds one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 2**16 if hard == resource.RLIM_INFINITY else min(hard, 2**16)
    if soft != resource.RLIM_INFINITY and soft < limit:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
