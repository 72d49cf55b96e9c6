"""The NVIDIA GPUs that this process may open, as names for CUDA_VISIBLE_DEVICES.

It uses neither CUDA nor a framework, since it runs before they are loaded. GPUs are named by UUID:
CUDA numbers only the devices that it may open, so where the cluster isolates GPUs by control
groups, a device's number on the machine is wrong.

Written from NVIDIA's documentation, and tested with recorded output only.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

_PROC = "/proc/driver/nvidia/gpus"
_DEV = "/dev"
_SMI_SECONDS = 60.0
"""nvidia-smi starts a driver that no process holds: seconds on a machine with many GPUs."""
_LISTED = re.compile(r"^(?P<indent>\s*)(?P<kind>GPU|MIG)\b.*\(UUID: (?P<uuid>[^)\s]+)\)\s*$")


@dataclass(frozen=True)
class Gpus:
    """GPUs, and how they were found."""

    devices: tuple[str, ...]
    """For CUDA_VISIBLE_DEVICES: UUIDs of GPUs or MIG instances, or that variable's own value."""
    how: str
    """How they were found, for errors: the source and its answer."""


def usable(environ: Mapping[str, str] | None = None, *, proc: str = _PROC, dev: str = _DEV) -> Gpus:
    """The GPUs that this process may open.

    The first of these that exists: CUDA_VISIBLE_DEVICES; `nvidia-smi -L`, which lists what control
    groups let it open, MIG instances too; the driver's files, for GPUs whose device file opens.

    Args:
        environ: the environment; None: this process's.
        proc, dev: where the driver describes its GPUs, and where their device files are.
    """
    environ = os.environ if environ is None else environ
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return Gpus(chosen(visible), f"CUDA_VISIBLE_DEVICES={visible!r}")
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is not None:
        return _listed(program)
    return _opened(proc, dev)


def chosen(visible: str) -> tuple[str, ...]:
    """The devices of a value of CUDA_VISIBLE_DEVICES, up to the first invalid one ("-1").

    >>> chosen("0, 2")
    ('0', '2')
    >>> chosen("-1")
    ()

    Source: CUDA C++ Programming Guide, "CUDA Environment Variables".
    """
    devices = []
    for device in visible.split(","):
        device = device.strip()
        if not device or device.startswith("-"):
            break
        devices.append(device)
    return tuple(devices)


def _listed(program: str) -> Gpus:
    """The GPUs that `nvidia-smi -L` lists.

    The instances of a GPU in MIG mode follow its own line, and CUDA runs on them only.
    """
    try:
        done = subprocess.run(
            [program, "-L"], capture_output=True, text=True, timeout=_SMI_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Gpus((), f"nvidia-smi -L: {error}")
    if done.returncode != 0:
        output = (done.stdout.strip() or done.stderr.strip()).partition("\n")[0]
        return Gpus((), f"nvidia-smi -L: exit code {done.returncode}, {output or 'no output'}")
    uuids: list[str] = []
    last_gpu = None
    for line in done.stdout.splitlines():
        match = _LISTED.match(line)
        if match is None:
            continue
        if match["kind"] == "GPU":
            last_gpu = match["uuid"]
        elif last_gpu is not None:
            with contextlib.suppress(ValueError):
                uuids.remove(last_gpu)
        uuids.append(match["uuid"])
    return Gpus(tuple(uuids), f"nvidia-smi -L: {len(uuids)} device(s)")


def _opened(proc: str, dev: str) -> Gpus:
    """The driver's GPUs whose device file this process can open."""
    try:
        names = sorted(os.listdir(proc))
    except OSError:
        return Gpus((), f"no nvidia-smi, and no NVIDIA driver ({proc})")
    uuids, closed = [], []
    for name in names:
        fields = _fields(os.path.join(proc, name, "information"))
        uuid, minor = fields.get("GPU UUID", ""), fields.get("Device Minor", "")
        path = os.path.join(dev, f"nvidia{minor}")
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except OSError as error:  # by a control group: "Operation not permitted"
            closed.append(f"{path}: {error.strerror}")
            continue
        if uuid.startswith("GPU-") and "?" not in uuid:  # an uninitialised one is all "?"
            uuids.append(uuid)
        else:
            closed.append(f"{path}: no UUID in {proc}/{name}/information")
    how = f"no nvidia-smi; {len(uuids)} of {len(names)} devices of {proc} can be opened"
    return Gpus(tuple(uuids), "; ".join([how, *closed]))


def _fields(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.partition(":") for line in file]
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in lines}
