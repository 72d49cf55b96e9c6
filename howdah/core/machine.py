"""Cores and memory that this process may use, with container limits; the processor's bf16; which
addresses are this machine alone."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import re
from collections.abc import Iterator
from functools import cache
from itertools import takewhile

_PROC = "/proc/self"
_CPUINFO = "/proc/cpuinfo"


_HOST_NAME = re.compile(r"[A-Za-z0-9.-]+")


def is_host_name(name: str) -> bool:
    """True if a host's name has only characters of RFC 1123 (no underscore), as Open MPI requires.

    >>> is_host_name("node-1.example"), is_host_name("my_laptop")
    (True, False)
    """
    return _HOST_NAME.fullmatch(name) is not None


def cores(proc: str = _PROC) -> int:
    """Cores that this process can use: its affinity, limited by the CPU quotas of its control
    group and the groups above it; at least 1.

    Source: Linux Documentation/admin-guide/cgroup-v2.rst, cpu.max ("quota period", microseconds);
    scheduler/sched-bwc.rst for version 1.
    """
    usable = float(len(os.sched_getaffinity(0)))
    for folder in _cgroup_folders(_V2, proc):
        quota, _, period = (_read(f"{folder}/cpu.max") or "max").partition(" ")
        if quota != "max":
            usable = min(usable, int(quota) / int(period))
    for folder in _cgroup_folders("cpu", proc):
        quota, period = (_read(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota is not None and period is not None and int(quota) > 0:
            usable = min(usable, int(quota) / int(period))
    return max(1, int(usable))


def memory_bytes(proc: str = _PROC) -> tuple[int, int]:
    """(limit, available) in bytes: the machine's memory, or the container's where that is less.

    Page cache that could be given back is counted as available: memory.stat's inactive_file.

    Source: cgroup-v2.rst, memory.max and memory.current; for version 1
    cgroup-v1/memory.rst.
    """
    import psutil

    machine = psutil.virtual_memory()
    limit, available = machine.total, machine.available
    for controller, bound_file, used_file, page_cache in (
        (_V2, "memory.max", "memory.current", "inactive_file "),
        ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "),
    ):
        for folder in _cgroup_folders(controller, proc):
            bound = _read(f"{folder}/{bound_file}")
            if bound in (None, "max"):
                continue
            used = int(_read(f"{folder}/{used_file}") or 0)
            for line in (_read(f"{folder}/memory.stat") or "").splitlines():
                if line.startswith(page_cache):
                    used -= int(line.split()[1])
            limit = min(limit, int(bound))
            available = min(available, max(0, int(bound) - used))
    return limit, available


def cpu_gains_by_bf16(cpuinfo: str = _CPUINFO) -> bool:
    """Whether the processor multiplies bf16 faster than float32: by AMX-BF16, or AMD's AVX512-BF16.

    Intel's AVX512-BF16 alone is not reliably faster: docs/decisions/bf16-on-cpus.md.
    """
    fields = processor(cpuinfo)
    by_vectors = fields.get("vendor_id") == "AuthenticAMD" and "avx512_bf16" in _flags(fields)
    return by_vectors or cpu_has_amx(cpuinfo)


def cpu_has_amx(cpuinfo: str = _CPUINFO) -> bool:
    """Whether the processor has AMX-BF16: matrix units, many times faster than its vector units."""
    return "amx_bf16" in _flags(processor(cpuinfo))


def cpu_emulates_bf16(cpuinfo: str = _CPUINFO) -> bool:
    """Whether this is an x86 processor for which oneDNN has no bf16 matrix products.

    There torch's are hundreds of times slower than float32's; TensorFlow converts, and is not.
    False if the processor's flags are unknown.

    Source: PyTorch's `mkldnn_bf16_device_check`.
    """
    flags = set(_flags(processor(cpuinfo)))
    has_it = flags >= {"avx512bw", "avx512dq", "avx512vl"} or "avx_ne_convert" in flags
    return bool(flags) and not has_it


@cache
def processor(cpuinfo: str = _CPUINFO) -> dict[str, str]:
    """The fields of the first processor; {} if the file does not exist (not Linux).

    The others are not read: the kernel queries each of them, and a machine may have hundreds.

    Source: proc(5) /proc/cpuinfo.
    """
    try:
        with open(cpuinfo, encoding="ascii", errors="replace") as file:
            lines = [line.partition(":") for line in takewhile(str.strip, file)]
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in lines}


def _flags(fields: dict[str, str]) -> list[str]:
    return fields.get("flags", "").split()


def return_free_memory() -> None:
    """Give memory that this process has freed back to the kernel; nothing without glibc.

    Tensors of some MiB lie in glibc's heap, which keeps what is free between others.

    Source: malloc_trim(3).
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # <malloc.h>


def map_blocks_from(size: int) -> None:
    """Give each later block of at least `size` bytes a mapping of its own, whose memory the kernel
    has again as soon as the block is freed; nothing without glibc.

    Smaller blocks lie in glibc's heap, and larger ones that find room there. What is freed in the
    heap between two blocks in use stays the process's, and no block fits into it that is larger.

    Source: mallopt(3), M_MMAP_THRESHOLD.
    """
    _set_allocator(_M_MMAP_THRESHOLD, size)


def keep_free_memory(top: int) -> None:
    """Do not give the end of glibc's heap back where it is free, and let it grow by `top` bytes at
    a time; nothing without glibc.

    Source: mallopt(3), M_TRIM_THRESHOLD and M_TOP_PAD.
    """
    _set_allocator(_M_TRIM_THRESHOLD, 2**31 - 1)
    _set_allocator(_M_TOP_PAD, top)


def _set_allocator(parameter: int, value: int) -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(parameter, value)


_V2 = ""
"""The name of cgroup v2's only hierarchy in /proc/<pid>/cgroup; v1 has one per controller."""


def _cgroup_folders(controller: str, proc: str) -> Iterator[str]:
    """The folders of this process's control group for a controller, and of the visible groups above
    it; the tightest limit applies.

    In a container the mount's root may be its own group, while the path is from the host's root.

    Source: cgroups(7), /proc/<pid>/cgroup; proc(5), /proc/<pid>/mountinfo.
    """
    group = None
    for line in (_read(f"{proc}/cgroup") or "").splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            group = path
    for line in (_read(f"{proc}/mountinfo") or "").splitlines() if group is not None else ():
        mount, _, kind = line.partition(" - ")
        root, point = mount.split()[3:5]
        system, *_, options = kind.split()
        if system != ("cgroup" if controller else "cgroup2"):
            continue
        if controller and controller not in options.split(","):
            continue
        below = os.path.relpath(group, root)
        parts = [] if below == os.curdir or os.pardir in below.split("/") else below.split("/")
        for depth in range(len(parts), -1, -1):
            yield "/".join([point, *parts[:depth]])
        return


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None


def is_loopback(host: str) -> bool:
    """True if only processes of this machine can reach the address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
