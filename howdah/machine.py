"""What this process may use of the machine: cores and memory, container limits included; bf16."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from itertools import takewhile

_CGROUP_ROOT = "/sys/fs/cgroup"
_CPUINFO = "/proc/cpuinfo"


def cores(cgroup_root: str = _CGROUP_ROOT) -> int:
    """Cores that this process can keep busy: its affinity, cut by a CPU quota; at least 1.

    Source: Linux Documentation/admin-guide/cgroup-v2.rst, cpu.max ("quota period", microseconds).
    """
    usable = float(len(os.sched_getaffinity(0)))
    for text in _cgroup_texts(cgroup_root, "cpu.max"):
        quota, period = text.split()
        if quota != "max":
            usable = min(usable, int(quota) / int(period))
    for text in _cgroup_texts(cgroup_root, "cpu/cpu.cfs_quota_us"):  # cgroup v1
        if int(text) > 0:
            with open(f"{cgroup_root}/cpu/cpu.cfs_period_us", encoding="ascii") as file:
                usable = min(usable, int(text) / int(file.read()))
    return max(1, int(usable))


def memory_bytes(cgroup_root: str = _CGROUP_ROOT) -> tuple[int, int]:
    """(limit, available) in bytes: the machine's memory, or the container's where that is less.

    Source: proc(5) /proc/meminfo; cgroup-v2.rst, memory.max and memory.current (page cache that
    could be given back is counted as available through memory.stat's inactive_file).
    """
    fields = {}
    with open("/proc/meminfo", encoding="ascii") as file:
        for line in file:
            key, _, rest = line.partition(":")
            fields[key] = int(rest.split()[0]) * 1024
    limit, available = fields["MemTotal"], fields["MemAvailable"]
    for folder in _cgroup_folders(cgroup_root):
        bound = _read(f"{folder}/memory.max")
        if bound in (None, "max"):
            continue
        used = int(_read(f"{folder}/memory.current") or 0)
        reclaimable = 0
        for line in (_read(f"{folder}/memory.stat") or "").splitlines():
            if line.startswith("inactive_file "):
                reclaimable = int(line.split()[1])
        limit = min(limit, int(bound))
        available = min(available, max(0, int(bound) - used + reclaimable))
    bound = _read(f"{cgroup_root}/memory/memory.limit_in_bytes")  # cgroup v1
    if bound is not None and int(bound) < limit:
        used = int(_read(f"{cgroup_root}/memory/memory.usage_in_bytes") or 0)
        limit, available = int(bound), min(available, max(0, int(bound) - used))
    return limit, available


def cpu_gains_by_bf16(cpuinfo: str = _CPUINFO) -> bool:
    """The processor multiplies bf16 faster than float32: by AMX-BF16, or AMD's AVX512-BF16.

    Intel's AVX512-BF16 alone is no gain to rely on: docs/decisions/bf16-on-cpus.md.
    """
    fields = processor(cpuinfo)
    by_vectors = fields.get("vendor_id") == "AuthenticAMD" and "avx512_bf16" in _flags(fields)
    return by_vectors or cpu_has_amx(cpuinfo)


def cpu_has_amx(cpuinfo: str = _CPUINFO) -> bool:
    """The processor has AMX-BF16: matrix units, many times faster than its vector units."""
    return "amx_bf16" in _flags(processor(cpuinfo))


def cpu_emulates_bf16(cpuinfo: str = _CPUINFO) -> bool:
    """An x86 processor for which oneDNN has no products of bf16.

    torch's take hundreds of times as long as float32's there; TensorFlow's, which converts, do not.
    False where the processor's flags are not known.

    Source: PyTorch's `mkldnn_bf16_device_check`.
    """
    flags = set(_flags(processor(cpuinfo)))
    has_it = flags >= {"avx512bw", "avx512dq", "avx512vl"} or "avx_ne_convert" in flags
    return bool(flags) and not has_it


@cache
def processor(cpuinfo: str = _CPUINFO) -> dict[str, str]:
    """The fields of the first processor; none where the file is not (not Linux).

    The others are not read: the kernel asks each of them anew, and a machine may have hundreds.

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


def _cgroup_folders(root: str) -> Iterator[str]:
    """This process's cgroup (v2) and those above it: the tightest limit holds."""
    own = ""
    for line in (_read("/proc/self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            own = line[3:].strip("/")
    parts = own.split("/") if own and ".." not in own else []
    for depth in range(len(parts), -1, -1):
        yield "/".join([root, *parts[:depth]])


def _cgroup_texts(root: str, name: str) -> Iterator[str]:
    for folder in _cgroup_folders(root):
        text = _read(f"{folder}/{name}")
        if text is not None:
            yield text


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return None
