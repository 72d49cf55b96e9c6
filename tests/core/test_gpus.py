"""GPUs that a process may open, by recorded answers of nvidia-smi and by files like the driver's.

Simulated throughout: there is no GPU on the machines that these tests are written for.
"""

from __future__ import annotations

import os

import pytest

from howdah.core.gpus import chosen, usable

ONE = "GPU-5c89852c-d268-c3f3-1b07-005d5ae1dc3f"
TWO = "GPU-8a56f1f2-0c1d-4f0e-9f6a-2f2f6b1c7e11"
MIG = "MIG-c7384736-a75d-5afc-978f-d2f1294409fd"
MIG2 = "MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d"
LISTS = [
    ([f"GPU 0: Tesla V100-SXM2-16GB (UUID: {ONE})", f"GPU 1: Tesla V100 (UUID: {TWO})"],
     (ONE, TWO)),
    # In a container that is given the machine's second one alone: it is listed as the first.
    ([f"GPU 0: NVIDIA A100-SXM4-40GB (UUID: {TWO})"], (TWO,)),
    # A GPU in MIG mode: CUDA runs on its instances.
    ([f"GPU 0: NVIDIA A100-SXM4-40GB (UUID: {ONE})",
      f"  MIG 3g.20gb     Device  0: (UUID: {MIG})",
      f"  MIG 3g.20gb     Device  1: (UUID: {MIG2})",
      f"GPU 1: NVIDIA A100-SXM4-40GB (UUID: {TWO})"],
     (MIG, MIG2, TWO)),
    (["No devices found."], ()),
]  # fmt: skip


def smi(folder, lines, code=0):
    """An nvidia-smi that says so; its PATH."""
    folder.mkdir(exist_ok=True)
    path = folder / "nvidia-smi"
    printed = "".join(f"echo '{line}'\n" for line in lines)
    path.write_text(f'#!/bin/sh\ntest "$*" = -L || exit 64\n{printed}exit {code}\n')
    path.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(("lines", "uuids"), LISTS)
def test_what_nvidia_smi_lists_is_named_by_its_uuid(tmp_path, lines, uuids):
    assert usable({"PATH": smi(tmp_path / "bin", lines)}).devices == uuids


def test_a_broken_driver_is_named(tmp_path):
    sentence = "Failed to initialize NVML: Driver/library version mismatch"
    gpus = usable({"PATH": smi(tmp_path / "bin", [sentence], code=18)})
    assert gpus.devices == ()
    assert "exit code 18" in gpus.how
    assert sentence in gpus.how


def test_without_nvidia_smi_gpus_are_found_by_their_device_files(tmp_path):
    proc, dev = tmp_path / "gpus", tmp_path / "dev"
    dev.mkdir()
    for number, uuid in enumerate((ONE, TWO, "GPU-????????-????-????-????-????????????")):
        (proc / f"0000:0{number}:00.0").mkdir(parents=True)
        (proc / f"0000:0{number}:00.0" / "information").write_text(
            f"Model: \t\t Tesla V100\nGPU UUID: \t {uuid}\nDevice Minor: \t {number}\n"
        )
        (dev / f"nvidia{number}").touch()
    (dev / "nvidia0").unlink()
    os.symlink(tmp_path / "closed" / "to-us", dev / "nvidia0")  # cannot be opened, also by root
    gpus = usable({"PATH": str(tmp_path)}, proc=str(proc), dev=str(dev))
    assert gpus.devices == (TWO,)
    assert "1 of 3" in gpus.how
    assert "nvidia0" in gpus.how
    nothing = usable({"PATH": str(tmp_path)}, proc=str(tmp_path / "none"), dev=str(dev))
    assert nothing.devices == ()
    assert "no NVIDIA driver" in nothing.how


@pytest.mark.parametrize(
    ("visible", "devices"),
    [("", ()), ("-1", ()), ("0, 2", ("0", "2")), ("0,-1,2", ("0",)), (f"{TWO}", (TWO,))],
)
def test_cuda_visible_devices_is_parsed_as_by_cuda(tmp_path, visible, devices):
    assert chosen(visible) == devices
    path = smi(tmp_path / "bin", LISTS[0][0])
    assert usable({"PATH": path, "CUDA_VISIBLE_DEVICES": visible}).devices == devices
