"""What a rank trains on: the CPU, or the one GPU that it sees.

A framework that finds no GPU computes on the CPU silently. On YARN a worker that has asked
for a GPU is refused instead (`require`), before it takes a place in a world.

The decisions are tried with described devices: no machine with a GPU was at hand.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from howdah.errors import ClusterError
from howdah.process import env

ASKED = "HOWDAH_GPUS"
"""Environment variable of a training process that an agent starts: GPUs that it has asked for."""
_BF16_CAPABILITY = (8, 0)
"""Compute capability from which NVIDIA's GPUs multiply bf16 (Ampere). Source: CUDA C++ Programming
Guide, "Compute Capabilities"."""


@dataclass(frozen=True)
class Device:
    """What a rank trains on."""

    kind: Literal["CPU", "GPU"]
    name: str = ""
    """Name of the GPU by its driver."""
    capability: tuple[int, int] | None = None
    """Major and minor compute capability of the GPU; None: not known."""

    @property
    def gpu(self) -> bool:
        """It is a GPU."""
        return self.kind == "GPU"

    @property
    def gains_by_bf16(self) -> bool:
        """A GPU with units for bf16; False where its capability is not known."""
        return self.capability is not None and self.capability >= _BF16_CAPABILITY

    def __str__(self) -> str:
        if not self.gpu:
            return "a CPU"
        capability = "not known" if self.capability is None else "{}.{}".format(*self.capability)
        return f"{self.name or 'a GPU'} (compute capability {capability})"


CPU = Device("CPU")


def find(framework: str) -> Device:
    """What the framework trains on in this process, which howdah/process/env.py has prepared.

    Args:
        framework: "tensorflow" or "torch".
    """
    return {"torch": _of_torch, "tensorflow": _of_tensorflow}[framework]()


def _of_torch() -> Device:
    import torch

    if not torch.cuda.is_available():
        return CPU
    # A rank sees one GPU (process/env.py), unless neither nvidia-smi nor the driver's files have
    # named them. It is set before anything is allocated, since NCCL refuses two ranks on one GPU.
    index = env.rank_env().local_rank % torch.cuda.device_count()
    torch.cuda.set_device(index)
    capability = torch.cuda.get_device_capability(index)
    return Device("GPU", torch.cuda.get_device_name(index), capability)


def _of_tensorflow() -> Device:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    if not gpus:
        return CPU
    details = tf.config.experimental.get_device_details(gpus[0])
    return Device("GPU", details.get("device_name", ""), details.get("compute_capability"))


def require(framework: str, device: Device, environ: Mapping[str, str] | None = None) -> None:
    """Refuse to train on the CPU where a GPU was asked for.

    Args:
        framework: "tensorflow" or "torch".
        device: what it has found.
        environ: the environment; None: this process's.
    Raises:
        ClusterError: the agent has asked for a GPU (`ASKED`), and the framework sees none.
    """
    environ = os.environ if environ is None else environ
    gpus = int(environ.get(ASKED, "0"))
    if gpus == 0 or device.gpu:
        return
    raise ClusterError(
        f"this worker has a GPU, and {framework} sees none",
        where=f"node {socket.gethostname()}",
        expected=f"{gpus} GPU (job.worker.gpus)",
        got=f"none, with CUDA_VISIBLE_DEVICES={environ.get('CUDA_VISIBLE_DEVICES', '')!r}; "
        + _build(framework),
        remedy="ship an environment with CUDA (`make setup-gpu`, docs/setup.md), and check the"
        " node's driver with `nvidia-smi`; job.worker.gpus: 0 trains on CPUs, and on this"
        " machine CUDA_VISIBLE_DEVICES='' does",
    )


def _build(framework: str) -> str:
    """Which CUDA the framework was built for, as a phrase."""
    if framework == "torch":
        import torch

        version, cuda = torch.__version__, torch.version.cuda
    else:
        import tensorflow as tf

        version, cuda = tf.__version__, tf.sysconfig.get_build_info().get("cuda_version")
    return f"{framework} {version} is built {f'for CUDA {cuda}' if cuda else 'without CUDA'}"
