"""Horovod's wheel: source checked, patch applies, cache keyed by everything, build verified."""

import io
import json
import os
import re
import sys
import tarfile
import types
import zipfile
from pathlib import Path

import pytest

from tests import ROOT

TOOLS = ROOT / "tools"


@pytest.fixture
def tools(monkeypatch, tmp_path):
    """The set-up tools' modules, with a cache of their own."""
    monkeypatch.syspath_prepend(str(TOOLS))
    monkeypatch.setenv("HOWDAH_CACHE", str(tmp_path / "cache"))
    import build_horovod
    import horovod_variant
    import toolkit

    class Tools:
        build = build_horovod
        variant = horovod_variant
        kit = toolkit

    return Tools


TARGET = {
    "python": "cpython-311-x86_64-linux-gnu",
    "site": "/nowhere",
    "tensorflow": "2.21.0",
    "torch": "2.13.0",
    "torch_build": "abc",
    "torch_cuda": "13.0",
    "tensorflow_cuda": None,
    "nccl": "2.29",
}


def key_of(tools, target=TARGET, **variant):
    return tools.variant.cache_key(
        tools.variant.build_inputs(target, tools.variant.Variant(**variant))
    )


def test_the_key_is_stable_and_names_the_version(tools):
    key = key_of(tools)
    assert key == key_of(tools)
    assert tools.variant.wheel_version(key) == f"0.28.1+howdah{key}"


def test_the_key_changes_with_every_single_input(tools):
    inputs = tools.variant.build_inputs(TARGET, tools.variant.Variant())
    keys = {tools.variant.cache_key(inputs)}
    for name in inputs:
        keys.add(tools.variant.cache_key({**inputs, name: inputs[name] + "x"}))
    assert len(keys) == len(inputs) + 1
    assert {
        "horovod",
        "patch",
        "python",
        "platform",
        "compiler",
        "mpi",
        "gpu",
        "flags",
        "cpu",
    } <= set(inputs)


def test_the_key_follows_what_is_installed_and_asked_for(tools, monkeypatch, tmp_path):
    keys = [
        key_of(tools),
        key_of(tools, {**TARGET, "tensorflow": "2.21.1"}),
        key_of(tools, {**TARGET, "torch": "2.13.1"}),
        key_of(tools, {**TARGET, "torch_build": "cpu"}),
        key_of(tools, {**TARGET, "python": "cpython-312-x86_64-linux-gnu"}),
        key_of(tools, frameworks=("torch",)),
        key_of(tools, frameworks=("tensorflow",)),
        key_of(tools, mpi=False),
        key_of(tools, frameworks=("torch",), gpu="nccl", cuda_archs=("90",)),
        key_of(tools, frameworks=("torch",), gpu="nccl", cuda_archs=("80",)),
    ]
    monkeypatch.setenv("CXXFLAGS", "-O0")
    keys.append(key_of(tools))
    patch = tmp_path / "other.patch"
    patch.write_bytes(tools.variant.PATCH.read_bytes() + b"\n")
    monkeypatch.setattr(tools.variant, "PATCH", patch)
    keys.append(key_of(tools))
    assert len(set(keys)) == len(keys)


def test_a_portable_build_has_one_key_on_all_machines(tools, monkeypatch):
    portable = {"mpi": False, "portable": True}
    keys = {key_of(tools, **portable)}
    monkeypatch.setenv("CXXFLAGS", "-O0")
    monkeypatch.setenv("PATH", "/nowhere")  # no compiler
    monkeypatch.setattr("os.confstr", lambda name: "glibc 2.28")
    keys.add(key_of(tools, **portable))
    assert len(keys) == 1
    monkeypatch.setattr(tools.variant, "TOOLCHAIN_SHA256", "another")
    assert key_of(tools, **portable) not in keys
    with pytest.raises(tools.kit.SetupError, match="without MPI"):
        tools.variant.check_variant(tools.variant.Variant(portable=True))


def test_versions_that_rhel_8_lacks_are_named(tools):
    listing = """
      000000: Version: 1  File: libc.so.6  Cnt: 2
      0x0010:   Name: GLIBC_2.28  Flags: none  Version: 5
      0x0020:   Name: GLIBC_2.34  Flags: none  Version: 4
      0x0030:   Name: GLIBCXX_3.4.9  Flags: none  Version: 3
      0x0040:   Name: GLIBCXX_3.4.29  Flags: none  Version: 2
      0x0050:   Name: CXXABI_1.3.11  Flags: none  Version: 6
      0x0060:   Name: CXXABI_1.3.13  Flags: none  Version: 7
    """
    newer = ["CXXABI_1.3.13", "GLIBCXX_3.4.29", "GLIBC_2.34"]
    assert tools.variant.newer_versions(listing) == newer
    with pytest.raises(tools.kit.SetupError, match=r"need GLIBC_2\.3\d"):
        tools.build.check_versions(
            [Path(sys.executable).resolve()], os.environ, tools.kit.cache_root() / "log"
        )


def test_versions_are_read_whatever_language_readelf_speaks(tools, monkeypatch, tmp_path):
    readelf = tmp_path / "readelf"
    readelf.write_text(
        '#!/bin/sh\nword=Name; [ "$LC_ALL" = C ] || word=Nom\n'
        'echo "  0x0010:   $word: GLIBC_2.34  Flags: none  Version: 2"\n'
    )
    readelf.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "LC_ALL": "fr_FR.UTF-8"}
    monkeypatch.setenv("PATH", env["PATH"])
    with pytest.raises(tools.kit.SetupError, match=r"GLIBC_2\.34"):
        tools.build.check_versions([], env, tmp_path / "log")


def test_a_portable_wheel_comes_from_the_index_without_a_compiler(tools, monkeypatch, tmp_path):
    installer = types.SimpleNamespace(pip=[sys.executable, "-m", "pip"], logs=tmp_path / "logs")
    variant = tools.variant.Variant(mpi=False, portable=True)
    target = tools.variant.probe(sys.executable)
    version = tools.variant.wheel_version(
        tools.variant.cache_key(tools.variant.build_inputs(target, variant))
    )
    name = f"horovod-{version}-cp311-cp311-{tools.variant.PORTABLE_PLATFORM}.whl"
    links = tmp_path / "links"
    links.mkdir()
    info = f"horovod-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: horovod\nVersion: {version}\n"
    with zipfile.ZipFile(links / name, "w") as wheel:
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
        wheel.writestr(f"{info}/RECORD", "")
    data = (links / name).read_bytes()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setattr(tools.build, "build_wheel", None)
    made, made_version = tools.build.provide_wheel(installer, sys.executable, variant)
    assert made_version == version and made.read_bytes() == data
    (links / name).unlink()
    assert tools.build.provide_wheel(installer, sys.executable, variant) == (made, version)


def test_an_uninstalled_framework_is_refused(tools):
    with pytest.raises(tools.kit.SetupError, match="torch is not installed"):
        key_of(tools, {**TARGET, "torch": None})


def test_a_source_of_another_hash_is_refused(tools, tmp_path):
    fake = tmp_path / "horovod-0.28.1.tar.gz"
    fake.write_bytes(b"something else")
    with pytest.raises(tools.kit.SetupError) as caught:
        tools.build.fetch_sdist(None, "python", fake)
    assert tools.variant.SDIST_SHA256 in caught.value.what
    assert caught.value.remedy


def test_a_damaged_source_in_the_cache_is_refused(tools):
    kept = tools.kit.cache_root() / "sdists" / "horovod-0.28.1.tar.gz"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"cut off")
    with pytest.raises(tools.kit.SetupError, match="SHA-256"):
        tools.build.fetch_sdist(None, "python", None)


def source_of_the_patch(patch: str) -> dict[str, str]:
    """The files that a patch is for, as far as its hunks show them (line numbers kept)."""
    files: dict[str, list[str]] = {}
    name, at = "", 0
    for line in patch.splitlines():
        if line.startswith("--- a/"):
            name, at = line[6:].split("\t")[0], 0
            files[name] = []
        elif line.startswith("@@"):
            at = int(line.split()[1][1:].split(",")[0])
            files[name] += [""] * (at - 1 - len(files[name]))
        elif name and line[:1] in (" ", "-") and not line.startswith("--- "):
            files[name].append(line[1:])
    return {name: "\n".join(lines) + "\n" for name, lines in files.items()}


def archive_of(files: dict[str, str], path: Path) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"horovod-0.28.1/{name}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return path


def test_the_patch_applies_and_makes_its_changes(tools, tmp_path):
    files = source_of_the_patch(tools.variant.PATCH.read_text())
    archive = archive_of(files, tmp_path / "horovod.tar.gz")
    source = tools.build.unpack(archive, tmp_path / "work", tmp_path / "patch.log")
    assert "set(CMAKE_CXX_STANDARD 17)" in (source / "CMakeLists.txt").read_text()
    assert "set(CMAKE_CXX_STANDARD 17)" in (source / "horovod/torch/CMakeLists.txt").read_text()
    assert "xla_mpi_ops.cc" in files["horovod/tensorflow/CMakeLists.txt"]
    tensorflow = (source / "horovod/tensorflow/CMakeLists.txt").read_text()
    assert "xla_mpi_ops.cc" not in tensorflow and "mpi_ops.cc" in tensorflow


def test_the_patch_does_not_apply_to_another_source(tools, tmp_path):
    files = source_of_the_patch(tools.variant.PATCH.read_text())
    files["CMakeLists.txt"] = files["CMakeLists.txt"].replace("CXX_STANDARD 14", "CXX_STANDARD 20")
    archive = archive_of(files, tmp_path / "horovod.tar.gz")
    with pytest.raises(tools.kit.SetupError, match="patch") as caught:
        tools.build.unpack(archive, tmp_path / "work", tmp_path / "patch.log")
    assert "FAILED" in caught.value.render()


def keep(tools, key, data=b"wheel"):
    wheels = tools.kit.cache_root() / "wheels"
    staging = wheels / f".build-{key}"
    staging.mkdir(parents=True)
    wheel = staging / "horovod-0.28.1-cp311-cp311-linux_x86_64.whl"
    wheel.write_bytes(data)
    return tools.build.keep_wheel(key, wheel, {"a": "b"})


def test_a_kept_wheel_is_found_and_checked(tools, capsys):
    assert tools.build.cached_wheel("k1") is None
    wheel = keep(tools, "k1")
    assert tools.build.cached_wheel("k1") == wheel
    assert tools.build.cached_wheel("k2") is None
    assert json.loads((wheel.parent / "wheel.json").read_text())["inputs"] == {"a": "b"}
    wheel.write_bytes(b"wheeL")
    assert tools.build.cached_wheel("k1") is None
    assert "building it again" in capsys.readouterr().err
    assert not wheel.parent.exists()
    keep(tools, "k1")
    assert tools.build.cached_wheel("k1") is not None


@pytest.mark.parametrize("damage", ["{", "{}", None])
def test_a_damaged_record_is_no_wheel(tools, damage):
    wheel = keep(tools, "k1")
    record = wheel.parent / "wheel.json"
    if damage is None:
        record.unlink()
    else:
        record.write_text(damage)
    assert tools.build.cached_wheel("k1") is None
    assert not wheel.parent.exists()


TABLE = """\
Horovod v0.28.1:

Available Frameworks:
    [X] TensorFlow
    [X] PyTorch
    [ ] MXNet

Available Controllers:
    [X] MPI
    [X] Gloo

Available Tensor Operations:
    [ ] NCCL
    [ ] DDL
    [X] MPI
    [X] Gloo
"""


def test_the_check_s_table_is_held_to_what_was_asked_for(tools):
    variant = tools.variant.Variant
    missing = tools.build.missing_parts
    ticked = tools.build.parse_check_build(TABLE)
    assert ticked["Frameworks"] == {"TensorFlow", "PyTorch"}
    assert missing(ticked, variant()) == []
    assert missing(ticked, variant(frameworks=("torch",), gpu="nccl")) == [
        "NCCL (Tensor Operations)"
    ]
    without = tools.build.parse_check_build(TABLE.replace("[X] PyTorch", "[ ] PyTorch"))
    assert missing(without, variant()) == ["PyTorch (Frameworks)"]
    no_mpi = tools.build.parse_check_build(TABLE.replace("[X] MPI", "[ ] MPI"))
    assert missing(no_mpi, variant(mpi=False)) == []
    assert missing(no_mpi, variant()) == ["MPI (Controllers)", "MPI (Tensor Operations)"]
    assert len(missing({}, variant())) == 6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frameworks": ("mxnet",)}, "unknown frameworks: mxnet"),
        ({"frameworks": ()}, "unknown frameworks: none"),
        ({"gpu": "nccl", "cuda_archs": ("90",)}, "one framework"),
    ],
)
def test_variants_that_cannot_be(tools, options, words):
    with pytest.raises(tools.kit.SetupError, match=words):
        tools.variant.check_variant(tools.variant.Variant(**options))


def gpu_tree(folder, release):
    nvcc = folder / "cuda" / "bin" / "nvcc"
    nvcc.parent.mkdir(parents=True)
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{release}.1'\n")
    nvcc.chmod(0o755)
    return folder / "cuda"


def test_a_gpu_build_says_what_it_lacks(tools, monkeypatch, tmp_path):
    variant = tools.variant.Variant(frameworks=("torch",), gpu="nccl", cuda_archs=("90",))
    target = {**TARGET, "site": str(tmp_path / "site")}

    def environment(**changes):
        return tools.variant.gpu_environment({**target, **changes}, variant, tmp_path / "work")

    monkeypatch.delenv("HOROVOD_CUDA_HOME", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "none"))
    with pytest.raises(tools.kit.SetupError, match="no CUDA compiler"):
        environment()
    monkeypatch.setenv("CUDA_HOME", str(gpu_tree(tmp_path / "twelve", "12.5")))
    with pytest.raises(tools.kit.SetupError, match=r"is CUDA 12\.5.*CUDA 13\.0"):
        environment()
    home = gpu_tree(tmp_path / "thirteen", "13.0")
    monkeypatch.setenv("CUDA_HOME", str(home))
    with pytest.raises(tools.kit.SetupError, match="without CUDA"):
        environment(torch_cuda=None)
    with pytest.raises(tools.kit.SetupError, match="NCCL"):
        environment()
    nccl = tmp_path / "site" / "nvidia" / "nccl"
    for file in (nccl / "include" / "nccl.h", nccl / "lib" / "libnccl.so.2"):
        file.parent.mkdir(parents=True)
        file.write_text("")
    env = environment()
    assert env["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert env["CUDA_HOME"] == env["HOROVOD_CUDA_HOME"] == str(home)
    assert env["HOROVOD_BUILD_CUDA_CC_LIST"] == "90"
    shim = Path(env["HOROVOD_NCCL_HOME"])
    assert (shim / "include" / "nccl.h").is_file()
    assert (shim / "lib" / "libnccl.so").samefile(nccl / "lib" / "libnccl.so.2")


def test_the_toolkit_of_the_environments_packages_is_found(tools, monkeypatch, tmp_path):
    for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    site = tmp_path / "site"
    assert str(tools.variant.cuda_home(str(site))) == "/usr/local/cuda"
    packages = site / "nvidia" / "cu13"
    gpu_tree(site / "nvidia", "13.0").rename(packages)
    for file in ("lib/libcudart.so.13", "lib/libcudadevrt.a", "include/cuda.h", "nvvm/bin/cicc"):
        (packages / file).parent.mkdir(parents=True, exist_ok=True)
        (packages / file).write_text(file)
    assert tools.variant.cuda_home(str(site)) == packages

    for file in ("include/nccl.h", "lib/libnccl.so.2"):
        (site / "nvidia" / "nccl" / file).parent.mkdir(parents=True, exist_ok=True)
        (site / "nvidia" / "nccl" / file).write_text("")
    variant = tools.variant.Variant(frameworks=("torch",), gpu="nccl", cuda_archs=("90",))
    env = tools.variant.gpu_environment({**TARGET, "site": str(site)}, variant, tmp_path / "work")
    home = Path(env["CUDA_HOME"])  # as linkers and nvcc look for it
    assert (home / "lib64" / "libcudart.so").read_text() == "lib/libcudart.so.13"
    assert (home / "lib64" / "libcudadevrt.a").read_text() == "lib/libcudadevrt.a"
    assert (home / "nvvm" / "bin" / "cicc").exists() and (home / "include" / "cuda.h").exists()
    assert env["CUDACXX"] == f"{home}/bin/nvcc" and Path(env["CUDACXX"]).exists()

    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    assert str(tools.variant.cuda_home(str(site))) == "/opt/cuda"


def test_cmake_4_is_passed_over(tools, monkeypatch, tmp_path):
    for name, version in (("new", "4.1.2"), ("fit", "3.25.1")):
        (tmp_path / name).mkdir()
        cmake = tmp_path / name / "cmake"
        cmake.write_text(f"#!/bin/sh\necho cmake version {version}\n")
        cmake.chmod(0o755)
    monkeypatch.delenv("HOROVOD_CMAKE", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}/new:{tmp_path}/fit")
    assert tools.variant.find_cmake() == f"{tmp_path}/fit/cmake"


def test_the_cuda_of_tensorflow_s_own_build_is_read(tools):
    """The wheel of the main environment is a build with CUDA; its build_info.py says which."""
    version = tools.variant.probe(sys.executable)["tensorflow_cuda"]
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", version)


@pytest.mark.parametrize(
    ("named", "read"),
    [(("9.0",), ("90",)), (("80", "90"), ("80", "90")), (("sm_90",), None), (("80 90",), None)],
)
def test_capabilities_are_checked_before_anything_is_compiled(tools, named, read):
    variant = tools.variant.Variant(frameworks=("torch",), gpu="nccl", cuda_archs=named)
    if read is None:
        with pytest.raises(tools.kit.SetupError, match="not compute capabilities"):
            tools.variant.check_variant(variant)
    else:
        assert tools.variant.check_variant(variant).cuda_archs == read
