"""Cores and memory under container limits."""

import os

import pytest

from howdah import machine


def test_a_quota_cuts_the_cores(tmp_path):
    here = len(os.sched_getaffinity(0))
    assert machine.cores(str(tmp_path)) == here
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine.cores(str(tmp_path)) == here
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert machine.cores(str(tmp_path)) == 1


def test_a_quota_of_cgroup_v1(tmp_path):
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert machine.cores(str(tmp_path)) == len(os.sched_getaffinity(0))
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("100000\n")
    assert machine.cores(str(tmp_path)) == 1


def test_a_container_s_memory_limit(tmp_path):
    total, available = machine.memory_bytes(str(tmp_path))
    assert 0 < available <= total
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.memory_bytes(str(tmp_path))[0] == total
    (tmp_path / "memory.max").write_text(str(64 * 2**20))
    (tmp_path / "memory.current").write_text(str(60 * 2**20))
    (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {10 * 2**20}\n")
    assert machine.memory_bytes(str(tmp_path)) == (64 * 2**20, 14 * 2**20)


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
def test_bf16_is_taken_where_the_processor_gains_by_it(
    tmp_path, vendor, flags, gains, has_amx, emulates
):
    info = tmp_path / "cpuinfo"
    one = f"vendor_id\t: {vendor}\nbugs\t\t: amx_bf16\nflags\t\t: {flags}\n"
    info.write_text(f"processor\t: 0\n{one}\nprocessor\t: 1\n{one}\n")
    assert machine.cpu_gains_by_bf16(str(info)) is gains
    assert machine.cpu_has_amx(str(info)) is has_amx
    assert machine.cpu_emulates_bf16(str(info)) is emulates


def test_nothing_is_gained_where_nothing_is_known_of_the_processor(tmp_path):
    assert machine.cpu_gains_by_bf16(str(tmp_path / "none")) is False
    assert machine.cpu_has_amx(str(tmp_path / "none")) is False
    assert machine.cpu_emulates_bf16(str(tmp_path / "none")) is False
