"""Cores and memory under container limits."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from howdah.core import machine
from tests.support.waiting import wait_until

V2 = "34 27 0:29 {root} {point} rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "35 27 0:30 {root} {point} rw - cgroup cgroup rw,{controllers}\n"
HERE = len(os.sched_getaffinity(0))


class Groups:
    """Made control groups: what a process's /proc and the mounted hierarchies hold."""

    def __init__(self, directory):
        self.proc, self.mounts = directory / "proc", directory / "cgroup"
        for folder in (self.proc, self.mounts):
            folder.mkdir()

    def member(self, lines, mounts):
        (self.proc / "cgroup").write_text(lines)
        (self.proc / "mountinfo").write_text(mounts)

    def put(self, name, text):
        path = self.mounts / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def cores(self):
        return machine.cores(str(self.proc))

    def memory(self):
        return machine.memory_bytes(str(self.proc))


@pytest.fixture
def groups(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    return Groups(tmp_path)


def test_without_control_groups_the_affinity_counts(groups):
    assert groups.cores() == 16
    groups.member("0::/\n", V2.format(root="/", point=groups.mounts))
    assert groups.cores() == 16
    groups.put("cpu.max", "max 100000")
    assert groups.cores() == 16


@pytest.mark.parametrize(
    ("group", "root", "outer", "inner"),
    [
        ("/yarn/container_1", "/", "yarn/", "yarn/container_1/"),
        # A container: its mount shows its own group as the root, its path is the host's.
        ("/docker/ab/yarn", "/docker/ab", "", "yarn/"),
    ],
)
def test_the_tightest_quota_of_nested_groups_holds(groups, group, root, outer, inner):
    groups.member(f"0::{group}\n", V2.format(root=root, point=groups.mounts))
    groups.put(f"{inner}cpu.max", "1200000 100000")
    groups.put("another/cpu.max", "100000 100000")
    assert groups.cores() == 12
    groups.put(f"{outer}cpu.max", "350000 100000")
    assert groups.cores() == 3
    groups.put(f"{inner}cpu.max", "50000 100000")
    assert groups.cores() == 1


@pytest.mark.parametrize("group", ["/../other", "/elsewhere"])
def test_a_group_outside_of_the_mount_has_the_mounts_quota(groups, group):
    groups.member(f"0::{group}\n", V2.format(root="/docker/ab", point=groups.mounts))
    groups.put("cpu.max", "250000 100000")
    assert groups.cores() == 2


def test_nested_quotas_of_cgroup_v1(groups):
    point = groups.mounts / "cpu,cpuacct"
    groups.member(
        "5:memory:/\n4:cpuset:/\n3:cpu,cpuacct:/yarn/container_1\n0::/\n",
        V1.format(root="/", point=groups.mounts / "cpuset", controllers="cpuset")
        + V1.format(root="/", point=point, controllers="cpu,cpuacct"),
    )
    for name in ("cpu,cpuacct", "cpu,cpuacct/yarn", "cpu,cpuacct/yarn/container_1"):
        groups.put(f"{name}/cpu.cfs_quota_us", -1)
        groups.put(f"{name}/cpu.cfs_period_us", 100000)
    assert groups.cores() == 16
    groups.put("cpu,cpuacct/yarn/container_1/cpu.cfs_quota_us", 700000)
    assert groups.cores() == 7
    groups.put("cpu,cpuacct/yarn/cpu.cfs_quota_us", 400000)
    assert groups.cores() == 4


def _own_group():
    """A new control group with a CPU quota, of version 1 or 2; None where none can be made."""
    for quota, text in (("cpu/cpu.cfs_quota_us", "100000"), ("cpu.max", "100000 100000")):
        group = Path("/sys/fs/cgroup", quota).parent / f"howdah-test-{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        if (group / Path(quota).name).exists():  # not in a folder of a plain file system
            (group / Path(quota).name).write_text(text)
            return group
        group.rmdir()
    return None


def test_the_quota_of_the_parent_group_holds_for_a_real_process():
    if HERE == 1 or (group := _own_group()) is None:
        pytest.skip("needs a second core, and control groups that it may make")
    inner = group / "inner"
    inner.mkdir()
    # It waits until it has been put into the group, then counts.
    script = (
        "import sys; sys.stdin.read(1); from howdah.core import machine; print(machine.cores())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        (inner / "cgroup.procs").write_text(str(process.pid))
        assert process.communicate("x", timeout=60)[0] == "1\n"
    finally:
        process.kill()
        process.wait()
        for folder in (inner, group):
            wait_until(lambda folder=folder: _removed(folder))


def _removed(folder):
    with contextlib.suppress(OSError):  # busy: its process is on its way out
        folder.rmdir()
    return not folder.exists()


def test_a_container_s_memory_limit(groups):
    total, available = groups.memory()
    assert 0 < available <= total
    groups.member("0::/yarn/c_1\n", V2.format(root="/", point=groups.mounts))
    groups.put("yarn/c_1/memory.max", "max")
    assert groups.memory()[0] == total
    groups.put("yarn/c_1/memory.max", 64 * 2**20)
    groups.put("yarn/c_1/memory.current", 60 * 2**20)
    groups.put("yarn/c_1/memory.stat", f"anon 1\ninactive_file {10 * 2**20}")
    assert groups.memory() == (64 * 2**20, 14 * 2**20)


def test_a_container_s_memory_limit_of_cgroup_v1(groups):
    total, _ = groups.memory()
    groups.member("2:memory:/c_1\n", V1.format(root="/", point=groups.mounts, controllers="memory"))
    groups.put("memory.limit_in_bytes", 2**63 - 4096)  # none
    assert groups.memory()[0] == total
    groups.put("c_1/memory.limit_in_bytes", 64 * 2**20)
    groups.put("c_1/memory.usage_in_bytes", 60 * 2**20)
    groups.put("c_1/memory.stat", f"inactive_file 1\ntotal_inactive_file {10 * 2**20}")
    assert groups.memory() == (64 * 2**20, 14 * 2**20)


AVX512 = "avx512f avx512bw avx512dq avx512vl"
PROCESSORS = [
    ("GenuineIntel", "fpu avx512f", False, False, True),
    ("GenuineIntel", f"fpu {AVX512}", False, False, False),
    ("GenuineIntel", f"fpu {AVX512} avx512_bf16 sse", False, False, False),
    ("GenuineIntel", f"fpu {AVX512} avx512_bf16 amx_bf16 amx_tile", True, True, False),
    ("GenuineIntel", "fpu avx2 avx_ne_convert", False, False, False),
    ("AuthenticAMD", "fpu avx2 sse", False, False, True),
    ("AuthenticAMD", f"fpu {AVX512} avx512_bf16", True, False, False),
]


@pytest.mark.parametrize(("vendor", "flags", "gains", "has_amx", "emulates"), PROCESSORS)
def test_bf16_is_used_where_it_is_faster(tmp_path, vendor, flags, gains, has_amx, emulates):
    info = tmp_path / "cpuinfo"
    one = f"vendor_id\t: {vendor}\nbugs\t\t: amx_bf16\nflags\t\t: {flags}\n"
    info.write_text(f"processor\t: 0\n{one}\nprocessor\t: 1\n{one}\n")
    assert machine.cpu_gains_by_bf16(str(info)) is gains
    assert machine.cpu_has_amx(str(info)) is has_amx
    assert machine.cpu_emulates_bf16(str(info)) is emulates


def test_an_unknown_processor_does_not_gain_by_bf16(tmp_path):
    assert machine.cpu_gains_by_bf16(str(tmp_path / "none")) is False
    assert machine.cpu_has_amx(str(tmp_path / "none")) is False
    assert machine.cpu_emulates_bf16(str(tmp_path / "none")) is False


_FREED = """
import os, sys
from bench.processes import anonymous
from howdah.core import machine
machine.keep_free_memory(0)
machine.map_blocks_from(int(sys.argv[1]))
blocks, between = [], []
for _ in range(64):
    blocks.append(bytearray(4 * 2**20))
    between.append(bytearray(2**16))  # in the heap: it keeps what lies before it
used = anonymous(os.getpid())
blocks.clear()
print((used - anonymous(os.getpid())) / 2**20)
"""


@pytest.mark.parametrize(("size", "given_back"), [(2**20, 256), (2**25, 0)])
def test_mapped_blocks_return_to_the_kernel_when_they_are_freed(size, given_back):
    """Smaller ones stay in the process, for the next ones."""
    done = subprocess.run(
        [sys.executable, "-c", _FREED, str(size)], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == pytest.approx(given_back, abs=16)
