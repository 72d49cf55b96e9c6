"""Packaging from an environment for GPUs (`make setup-gpu`): what it has and what is left out."""

import importlib.metadata
import re
import sys
from pathlib import Path

import pytest

from howdah.errors import ClusterError, UsageError
from howdah.packaging import elf, horovod
from howdah.packaging.kinds import KINDS
from tests import ROOT

FRAMEWORKS = ("tensorflow", "torch")
_REQUIREMENT = re.compile(r"^([A-Za-z0-9-]+)(?:\[[\w,-]+\])?(.*)$", re.MULTILINE)


def requirements(name: str) -> dict[str, str]:
    """{distribution: its versions} of a requirements file."""
    lines = (ROOT / name).read_text().splitlines()
    return dict(_REQUIREMENT.findall("\n".join(line for line in lines if line[:1] not in "#")))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_environment_for_gpus_has_the_roots_of_all_that_it_ships(framework):
    """All kinds but the ETL's, which needs pyspark, and those of the other framework."""
    (other,) = {*FRAMEWORKS} - {framework}
    here = requirements(f"requirements-gpu-{framework}.txt")
    lock = (ROOT / f"requirements-gpu-{framework}.lock").read_text()
    for name, kind in KINDS.items():
        if name == "etl" or other in kind.roots:
            continue
        assert {*kind.roots} <= {*here}, name
        locked = {*re.findall(r"^([\w-]+)==", lock, re.MULTILINE), "horovod"}
        assert {*kind.roots} <= locked, name


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_its_versions_are_those_of_the_main_environment(framework):
    main = requirements("requirements.txt")
    here = requirements(f"requirements-gpu-{framework}.txt")
    assert {name: here[name] for name in here if name in main} == {
        name: main[name] for name in here if name in main
    }


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("nvidia/nvshmem/lib/libnvshmem_host.so.3", True),
        ("nvidia/nvshmem/lib/nvshmem_bootstrap_mpi.so.3", False),
        ("nvidia/nvshmem/lib/nvshmem_transport_ibrc.so.4", False),
        ("nvidia/cu13/lib/libcufile.so.0", True),
        ("nvidia/cu13/lib/libcufile_rdma.so.1", False),
    ],
)
def test_plug_ins_for_networks_that_nodes_may_lack_are_left_out(name, kept):
    """They need libraries of MPI, UCX or InfiniBand, which would be missing when packing."""
    assert KINDS["torch"].wants("nvidia-of-some-version", name) == kept


@pytest.mark.parametrize("distribution", ["nvidia-nvshmem-cu13", "nvidia-cufile"])
def test_what_is_left_of_cuda_s_libraries_needs_no_library_of_others(distribution):
    """The real wheels: what their libraries need comes from CUDA or from every Linux."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed")
    libraries = [one for one in files if ".so" in one.name]
    assert libraries
    needed = {
        library
        for one in libraries
        if KINDS["torch"].wants(distribution, str(one))
        for library in elf.read(str(one.locate())).needed
    }
    foreign = ("libmpi", "libucs", "libucp", "libfabric", "libibverbs", "libmlx5", "librdmacm")
    assert not [name for name in needed if name.startswith((*foreign, "liboshmem", "libpmix"))]


def build_with_mpi(monkeypatch, *, gpu: bool = True) -> None:
    installed = horovod.Horovod(
        directory="/site", version="0.28.1", library="/site/horovod/mpi_lib.so", gpu=gpu
    )
    monkeypatch.setattr(horovod, "_installed", lambda name: installed)
    monkeypatch.setattr(horovod, "_needs_mpi", lambda library: True)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_remedy_builds_a_horovod_with_nccl_for_this_environment(
    monkeypatch, tmp_path, framework
):
    """It is for packaging and for submitting, which takes no wheel."""
    build_with_mpi(monkeypatch)
    with pytest.raises(ClusterError, match="needs MPI") as caught:
        horovod.provide(framework, None, str(tmp_path))
    command = re.search(r"python tools/build_horovod\.py (.*?) \(", caught.value.remedy)[1]
    assert command == (
        f"--frameworks {framework} --no-mpi --gpu nccl --python {sys.executable} --install"
    )
    assert "--horovod" not in caught.value.remedy
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import build_horovod

    monkeypatch.setattr(sys, "argv", ["build_horovod.py", *command.split()])
    options = build_horovod.parse_arguments()  # the builder knows all of them
    assert (options.gpu, options.no_mpi, options.install) == ("nccl", True, True)
    assert options.cuda_archs == ""  # found from nvidia-smi


@pytest.mark.parametrize(("gpu", "variant"), [(True, "--gpu nccl"), (False, "--portable")])
def test_a_wheel_that_does_not_fit_is_refused_with_the_command_for_one(
    monkeypatch, tmp_path, gpu, variant
):
    build_with_mpi(monkeypatch, gpu=gpu)
    with pytest.raises(UsageError, match="without MPI") as caught:
        horovod.provide("torch", str(Path(tmp_path, "none.whl")), str(tmp_path))
    assert variant in caught.value.remedy and "--install" not in caught.value.remedy
