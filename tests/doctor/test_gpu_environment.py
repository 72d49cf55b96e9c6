"""What the doctor says of an environment for GPUs, and what carries the sums of GPUs."""

import os
import sys
import types
from pathlib import Path

import pytest

from howdah.config import loader
from howdah.doctor import packages
from howdah.errors import ConfigError
from howdah.packaging import elf
from tests import ROOT


@pytest.mark.parametrize(
    ("environment", "lock", "remedy"),
    [
        (".venv", "requirements.lock", "make setup"),
        ("venv-of-mine", "requirements.lock", "make setup"),
        (".venv-gpu-torch", "requirements-gpu-torch.lock", "make setup-gpu FRAMEWORK=torch"),
        (
            ".venv-gpu-tensorflow", "requirements-gpu-tensorflow.lock",
            "make setup-gpu FRAMEWORK=tensorflow",
        ),
    ],
)  # fmt: skip
def test_packages_are_compared_with_the_lock_of_their_environment(
    monkeypatch, tmp_path, environment, lock, remedy
):
    monkeypatch.setattr(sys, "prefix", str(tmp_path / environment))
    assert packages.find_lock() == str(ROOT / lock)
    other = tmp_path / "other.lock"
    other.write_text("numpy==0.0.1\n")
    assert packages.check_packages({}, str(other)).remedy == remedy
    monkeypatch.setattr(packages, "horovod_libraries", dict)
    assert packages.check_horovod(os.environ).remedy.startswith(f"{remedy}; ")


def test_these_are_the_environments_that_set_up_makes(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import setup_env

    for framework in packages.FRAMEWORKS:
        target = setup_env.target_for(framework)
        monkeypatch.setattr(sys, "prefix", str(target.venv))
        assert packages.find_lock() == str(target.lock)


def job(gpus: int, comm: str = "auto", framework: str = "torch"):
    return loader.from_dict({
        "training": {"framework": framework, "comm": comm}, "job": {"worker": {"gpus": gpus}},
    })  # fmt: skip


@pytest.fixture
def built(monkeypatch):
    """Sets what the installed Horovod's libraries need."""

    def of(*needed: str) -> None:
        libraries = dict.fromkeys(packages.FRAMEWORKS, "/site/horovod/mpi_lib.so")
        monkeypatch.setattr(packages, "horovod_libraries", lambda: libraries)
        monkeypatch.setattr(elf, "read", lambda path: types.SimpleNamespace(needed=needed))

    return of


def test_a_horovod_without_nccl_carries_no_sums_of_gpus_for_torch(built):
    built("libc.so.6")
    assert packages.carrier_of_job(job(0)) == "horovod"
    assert packages.carrier_of_job(job(1)) == "torch"
    with pytest.raises(ConfigError, match="without NCCL") as caught:
        packages.carrier_of_job(job(1, "horovod"))
    assert caught.value.got == "job.worker.gpus: 1"
    assert packages.carrier_of_job(job(1, framework="tensorflow")) == "horovod"


def test_a_horovod_with_nccl_carries_them(built):
    built("libc.so.6", "libnccl.so.2")
    for comm in ("auto", "horovod"):
        assert packages.carrier_of_job(job(1, comm)) == "horovod"
    assert packages.carrier_of_job(job(1, "torch")) == "torch"


def test_the_installed_library_says_what_it_was_built_with():
    library = (packages.horovod_libraries() or {}).get("torch")
    if library is None:
        pytest.skip("Horovod for torch is not installed")
    assert packages.horovod_carries("torch", gpu=False)
    nccl = b"libnccl.so" in Path(library).read_bytes()
    assert packages.horovod_carries("torch", gpu=True) == nccl
