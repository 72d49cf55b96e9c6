"""A variant of Horovod, the inputs of its build, and the cache key of these inputs.

Standard library only.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from toolkit import ROOT, SetupError, output_of, sha256_of

VERSION = "0.28.1"
SDIST_SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
PATCH = ROOT / "patches" / f"horovod-{VERSION}.patch"
TOOLCHAIN = "ppbt-0.1.8-py3-none-manylinux_2_17_x86_64.whl"  # GCC 11.2 with glibc 2.17
TOOLCHAIN_SHA256 = "cdc534b53f052ff32812ea7167afd3393068b1dab92c63546b38353c286aac73"
OLDER_LIBSTDCXX = ROOT / "patches" / "older-libstdc++.cc"
PORTABLE_PLATFORM = "manylinux_2_28_x86_64"
NEWEST_VERSIONS = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11)}  # that platform's
BUILD_FORMAT = "1"  # raise it when build_horovod.py builds the same inputs into something else
FRAMEWORKS = {"tensorflow": "TensorFlow", "torch": "PyTorch"}  # {name: Horovod's name of it}
COMPILER_FLAGS = ("CFLAGS", "CXXFLAGS", "LDFLAGS")
CPU_FEATURES = ("f16c", "avx", "fma")  # Horovod compiles for these where the builder has them

# Run by the interpreter that Horovod is built for; it does not import a framework.
_PROBE = """
import hashlib, importlib.metadata as m, json, pathlib, re, sys, sysconfig
site = pathlib.Path(sysconfig.get_path("platlib"))
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
def text(path):
    return (site / path).read_text() if (site / path).is_file() else ""
build_info = text("tensorflow/python/platform/build_info.py")
torch_text = text("torch/version.py")
def find(pattern, where):
    match = re.search(pattern, where)
    return match.group(1) if match else None
print(json.dumps({
    "python": sysconfig.get_config_var("SOABI"),
    "version": list(sys.version_info[:2]),
    "site": str(site),
    "include": sysconfig.get_path("include"),
    "horovod": version("horovod"),
    "tensorflow": version("tensorflow") or version("tensorflow-cpu"),
    "torch": version("torch"),
    "torch_build": hashlib.sha256(torch_text.encode()).hexdigest()[:16],
    "torch_cuda": find(r"cuda(?::[^=]*)? = '([0-9.]+)'", torch_text),
    "tensorflow_cuda": find(r".cuda_version.[:,] ?.([0-9.]+)", build_info),
    "nccl": version("nvidia-nccl-cu13") or version("nvidia-nccl-cu12"),
}))
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Variant:
    """A variant of Horovod's build.

    `frameworks` are of FRAMEWORKS. `mpi` adds the MPI controller to Gloo, which needs no MPI
    library at run time. `gpu` is "none" or "nccl"; `cuda_archs` are compute capabilities times ten.
    `portable`: compiled by a pinned compiler for PORTABLE_PLATFORM; equal on every machine.
    """

    frameworks: tuple[str, ...] = tuple(FRAMEWORKS)
    mpi: bool = True
    gpu: str = "none"
    cuda_archs: tuple[str, ...] = ()
    portable: bool = False


def probe(python: str) -> dict:
    """Versions and paths of the target interpreter's environment."""
    text = output_of([python, "-c", _PROBE])
    if text is None:
        raise SetupError(f"{python} does not run", remedy="make setup")
    return json.loads(text)


def cache_key(inputs: Mapping[str, str]) -> str:
    """12 hex digits over all inputs; changes when any of them does."""
    canonical = json.dumps(dict(sorted(inputs.items())), separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def wheel_version(key: str) -> str:
    """Horovod's version with the key as its local part (PEP 440)."""
    return f"{VERSION}+howdah{key}"


def build_inputs(target: Mapping, variant: Variant) -> dict[str, str]:
    """Everything that the built wheel depends on, as text.

    Args:
        target: the result of `probe`.
        variant: the variant to build.

    Raises:
        SetupError: a framework or a tool is missing.
    """
    for framework in variant.frameworks:
        if not target[framework]:
            raise SetupError(
                f"{framework} is not installed in {target['site']}",
                remedy="install it first (make setup), or leave it out of --frameworks",
            )
    if variant.portable:
        compiled = {
            "platform": PORTABLE_PLATFORM,
            "compiler": f"{TOOLCHAIN} {TOOLCHAIN_SHA256} {sha256_of(OLDER_LIBSTDCXX)}",
        }
    else:
        flags = {name: os.environ.get(name, "") for name in COMPILER_FLAGS}
        glibc = os.confstr("CS_GNU_LIBC_VERSION")
        compiled = {
            "platform": f"{platform.system()} {platform.machine()} {glibc}",
            "compiler": _first_line(output_of([_compiler(), "--version"])),
            "flags": json.dumps(flags),
        }
    inputs = compiled | {
        "format": BUILD_FORMAT,
        "horovod": f"{VERSION} {SDIST_SHA256}",
        "patch": sha256_of(PATCH),
        "python": target["python"],
        "cpu": ",".join(_cpu_features()),
        "mpi": _mpi_version() if variant.mpi else "none",
        "gpu": "none",
    }
    if "tensorflow" in variant.frameworks:
        inputs["tensorflow"] = target["tensorflow"]
    if "torch" in variant.frameworks:
        inputs["torch"] = f"{target['torch']} {target['torch_build']}"
    if variant.gpu == "nccl":
        compiler = cuda_home(target["site"]) / "bin" / "nvcc"
        nvcc = _first_line((output_of([compiler, "--version"]) or "")[-80:])
        inputs["gpu"] = f"nccl {target['nccl']} {nvcc} {','.join(variant.cuda_archs)}"
    return inputs


def newer_versions(listing: str) -> list[str]:
    """Symbol versions in `readelf --version-info`'s output that PORTABLE_PLATFORM may lack.

    >>> newer_versions("Name: GLIBC_2.34  Flags: none\\nName: GLIBCXX_3.4.21  Flags: none")
    ['GLIBC_2.34']
    """
    needed = set(re.findall(r"Name: ((GLIBC|GLIBCXX|CXXABI)_([0-9.]+))", listing))
    return sorted(
        name
        for name, family, version in needed
        if tuple(map(int, version.split("."))) > NEWEST_VERSIONS[family]
    )


def _cpu_features() -> list[str]:
    try:
        flags = set(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return []
    return [feature for feature in CPU_FEATURES if feature in flags]


def _first_line(text: str | None) -> str:
    return text.splitlines()[0].strip() if text else "none"


def _compiler() -> str:
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if not compiler:
        raise SetupError("g++ is not on PATH", remedy="apt-get install g++ (or set CXX)")
    return compiler


def _mpi_version() -> str:
    wrapper = shutil.which("mpicxx")
    if wrapper is None:
        raise SetupError(
            "MPI's compiler wrapper mpicxx is not on PATH",
            remedy="apt-get install openmpi-bin libopenmpi-dev (or build with --no-mpi)",
        )
    return _first_line(output_of([wrapper, "--showme:version"]) or output_of([wrapper, "-show"]))


def find_cmake() -> str:
    """A CMake from 3.13 on and below 4 (which refuses the Gloo that Horovod bundles).

    Raises:
        SetupError: no CMake has such a version; with the versions of all.
    """
    seen = []
    folders = [*os.environ.get("PATH", "").split(os.pathsep), "/usr/bin"]
    candidates = [os.environ.get("HOROVOD_CMAKE", ""), *(f"{folder}/cmake" for folder in folders)]
    for candidate in dict.fromkeys(filter(None, candidates)):
        match = re.search(r"version (\d+)\.(\d+)", output_of([candidate, "--version"]) or "")
        if match is None:
            continue
        version = (int(match.group(1)), int(match.group(2)))
        if (3, 13) <= version < (4, 0):
            return candidate
        seen.append(f"{candidate} is {version[0]}.{version[1]}")
    raise SetupError(
        "Horovod needs CMake from 3.13 on and below 4: " + ("; ".join(seen) or "cmake is missing"),
        remedy="apt-get install cmake, or point HOROVOD_CMAKE at one",
    )


# ------------------------------------------------------------------------------------ GPU builds
def cuda_home(site: str) -> Path:
    """The CUDA toolkit: $HOROVOD_CUDA_HOME, $CUDA_HOME, that in `site`, or /usr/local/cuda.

    NVIDIA's packages for CUDA 13 lay out a whole toolkit in `site`; those for CUDA 12 have no nvcc.
    """
    for name in ("HOROVOD_CUDA_HOME", "CUDA_HOME"):
        if os.environ.get(name):
            return Path(os.environ[name])
    for nvcc in sorted(Path(site).glob("nvidia/cu[0-9]*/bin/nvcc")):
        return nvcc.parent.parent
    return Path("/usr/local/cuda")


def gpu_environment(target: Mapping, variant: Variant, work: Path) -> dict[str, str]:
    """Build variables for NCCL; lays out $HOROVOD_NCCL_HOME from the nvidia-nccl wheel.

    Raises:
        SetupError: the toolkit or the NCCL wheel is missing, or the framework's CUDA differs.
    """
    (framework,) = variant.frameworks  # one for each environment: checked by `check_variant`
    home = cuda_home(target["site"])
    nvcc = home / "bin" / "nvcc"
    release = re.search(r"release (\d+)\.(\d+)", output_of([nvcc, "--version"]) or "")
    if release is None:
        raise SetupError(
            f"no CUDA compiler at {nvcc}",
            remedy="install the CUDA toolkit and set CUDA_HOME to it",
        )
    cuda = target[f"{framework}_cuda"]
    if cuda is None:
        raise SetupError(
            f"{framework} {target[framework]} is a build without CUDA",
            remedy=f"fill the environment from requirements-gpu-{framework}.txt",
        )
    if release.group(1) != cuda.split(".")[0]:
        raise SetupError(
            f"{nvcc} is CUDA {release.group(1)}.{release.group(2)}, {framework} is built for "
            f"CUDA {cuda}",
            remedy=f"set CUDA_HOME to a CUDA {cuda.split('.')[0]} toolkit",
        )
    nccl = Path(target["site"]) / "nvidia" / "nccl"
    library = nccl / "lib" / "libnccl.so.2"
    if not (nccl / "include" / "nccl.h").is_file() or not library.is_file():
        raise SetupError(
            f"NCCL's headers or library are not in {nccl}",
            remedy=f"fill the environment from requirements-gpu-{framework}.txt",
        )
    shim = work / "nccl"
    (shim / "lib").mkdir(parents=True)
    (shim / "include").symlink_to(nccl / "include")
    for name in ("libnccl.so", "libnccl.so.2"):  # the linker looks for libnccl.so
        (shim / "lib" / name).symlink_to(library)
    if home.is_relative_to(target["site"]):
        home = _as_toolkit(home, work / "cuda")
    return {
        "HOROVOD_GPU": "CUDA",
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": str(home),
        "CUDA_HOME": str(home),
        "HOROVOD_NCCL_HOME": str(shim),
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_BUILD_CUDA_CC_LIST": ",".join(variant.cuda_archs),
        "CUDACXX": str(home / "bin" / "nvcc"),
    }


def _as_toolkit(packages: Path, target: Path) -> Path:
    """Lay out NVIDIA's packages in the way CMake and nvcc expect; return `target`.

    The packages have lib instead of lib64, and only the library names that programs load, not those
    that linkers use.
    """
    (target / "bin").mkdir(parents=True)
    (target / "lib64").mkdir()
    for part in ("include", "nvvm"):
        (target / part).symlink_to(packages / part)
    for tool in (packages / "bin").iterdir():
        (target / "bin" / tool.name).symlink_to(tool)
    for library in (packages / "lib").glob("lib*.*"):
        (target / "lib64" / library.name).symlink_to(library)
        plain = target / "lib64" / f"{library.name.split('.so')[0]}.so"
        if ".so." in library.name and not plain.exists():
            plain.symlink_to(library)
    return target


def check_variant(variant: Variant) -> Variant:
    """Refuse a variant that cannot be built; fill in the GPU's compute capability.

    Raises:
        SetupError: frameworks are unknown or missing, two are for a GPU, or the GPU is unknown.
    """
    unknown = [name for name in variant.frameworks if name not in FRAMEWORKS]
    if unknown or not variant.frameworks:
        raise SetupError(
            f"unknown frameworks: {', '.join(unknown) or 'none'}",
            remedy="--frameworks takes tensorflow, torch, or tensorflow,torch",
        )
    if variant.portable and (variant.mpi or variant.gpu != "none"):
        raise SetupError(
            "a portable build is without MPI and CUDA, which differ from machine to machine",
            remedy="leave out --gpu, or --portable",
        )
    if variant.gpu == "none":
        return variant
    if len(variant.frameworks) != 1:
        raise SetupError(
            "a GPU build is for one framework: TensorFlow's and PyTorch's wheels use different "
            "CUDA versions",
            remedy="--gpu nccl --frameworks torch (or tensorflow), one environment for each",
        )
    if variant.cuda_archs:
        named = tuple(one.replace(".", "") for one in variant.cuda_archs)
        if not all(one.isdigit() for one in named):
            raise SetupError(
                f"not compute capabilities: {', '.join(variant.cuda_archs)}",
                remedy="separate them by commas: 80,90 (A100, H100)",
            )
        return dataclasses.replace(variant, cuda_archs=named)
    listing = output_of(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"])
    archs = tuple(sorted({line.strip().replace(".", "") for line in (listing or "").splitlines()}))
    if not archs or not all(arch.isdigit() for arch in archs):
        raise SetupError(
            "nvidia-smi does not report the GPU's compute capability",
            remedy="set it: --cuda-archs 90 (H100, H200), 80 (A100), 89 (L4, L40)",
        )
    return dataclasses.replace(variant, cuda_archs=archs)
