"""The shared libraries that an environment includes, and the glibc that its files need."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence

from howdah.errors import ClusterError
from howdah.packaging import elf
from howdah.packaging.part import Part

LOADER = "ld-linux-x86-64.so.2"
_GLIBC = re.compile(
    r"(ld-linux.*|linux-vdso|linux-gate|libc|libm|libpthread|libdl|librt|libutil|libresolv"
    r"|libanl|libmvec|libBrokenLocale|libthread_db)\.so(\.|$)"
)
_CARRIED = re.compile(
    r"(ld-linux-x86-64|libc|libm|libmvec|libpthread|libdl|librt|libutil|libresolv|libanl|libnsl"
    r"|libBrokenLocale|libthread_db|libnss_(compat|dns|files|hesiod))\.so\.\d+"
)
"""glibc's own files: all of them, since libraries of a node must not bring their own libpthread."""
_DRIVER = re.compile(r"(libcuda|libnvidia-ml)\.so")  # comes with the GPU's kernel module
_LDD = re.compile(r"^\s*(\S+) => (/\S+)", re.MULTILINE)


def of_the_system(parts: Iterable[Part]) -> Iterator[Part]:
    """Libraries that the ELF files load from the system, without glibc's.

    Libraries inside a distribution are found by its modules themselves ($ORIGIN).
    """
    parts = list(parts)
    inside = {os.path.basename(part.name) for part in parts}
    needed_by: dict[str, str] = {}  # {library of the system: a file that needs it}
    for part in parts:
        elf_file = elf.read(part.path) if part.is_elf() else None
        for name in elf_file.needed if elf_file else ():
            if not (_GLIBC.match(name) or _DRIVER.match(name) or name in inside):
                needed_by.setdefault(name, part.path)
    libraries: dict[str, str] = {}
    for path in sorted(set(needed_by.values())):
        for name, found_at in _loaded_by(path).items():  # ldd lists indirect ones too
            if not (_GLIBC.match(name) or _DRIVER.match(name) or name in inside):
                libraries[name] = found_at
    lacking = sorted(name for name in needed_by if name not in libraries)
    if lacking:
        raise ClusterError(
            "shared libraries of the environment are missing on this machine",
            where=sys.prefix,
            got=", ".join(f"{name} (of {needed_by[name]})" for name in lacking),
            remedy="install them, or install the packages again that need them",
        )
    for name, path in libraries.items():
        yield Part(name=f"lib/shared/{name}", path=os.path.realpath(path))


def machine_glibc(interpreter: str) -> Iterator[Part]:
    """This machine's glibc with its loader, for nodes whose own is older.

    Args:
        interpreter: a program of this machine.
    """
    library = _loaded_by(interpreter).get("libc.so.6", "")
    directory = os.path.dirname(library)
    names = sorted(filter(_CARRIED.fullmatch, os.listdir(directory))) if directory else []
    if LOADER not in names:
        raise ClusterError(
            "this machine's glibc cannot be packed",
            where=library or interpreter,
            expected=f"a directory with libc.so.6 and {LOADER}",
            remedy="pack on a Linux system for x86-64 with glibc",
        )
    for name in names:
        path = os.path.realpath(os.path.join(directory, name))
        yield Part(name=f"lib/glibc/{name}", path=path, executable=name == LOADER)


def _loaded_by(path: str) -> dict[str, str]:
    """{library: path} that the loader finds for a file."""
    try:
        answer = subprocess.run(
            ["ldd", path], capture_output=True, text=True, check=False,
            env={"PATH": "/usr/bin:/bin"},
        )  # fmt: skip
    except FileNotFoundError:
        raise ClusterError(
            "the shared libraries of an environment cannot be listed",
            where="ldd",
            remedy="install glibc's ldd (Debian: libc-bin)",
        ) from None
    return dict(_LDD.findall(answer.stdout))


def newest_glibc(parts: Iterable[Part]) -> tuple[str, str]:
    """The newest glibc that a file needs, and the file's name."""
    newest, by = (2, 0), ""
    for part in parts:
        elf_file = elf.read(part.path) if part.is_elf() else None
        version = elf.newest_glibc(elf_file.versions) if elf_file else None
        if version is not None and version > newest:
            newest, by = version, part.name
    return ".".join(map(str, newest)), by


def without_idle_cuda(
    parts: Sequence[Part], distributions: Sequence[importlib.metadata.Distribution]
) -> list[Part]:
    """Without the libraries of CUDA that the framework does not load on a CPU.

    PyTorch's wheel for CUDA does not load without CUDA's libraries, even on a CPU; but a third of
    them it opens only on a GPU.
    """
    cuda: set[str] = set()
    for distribution in distributions:
        if distribution.name.lower().startswith("nvidia-"):
            cuda |= {str(distribution.locate_file(entry)) for entry in distribution.files or ()}
    idle = "libtorch_cuda_linalg."  # opened at the first such operation on a GPU
    rest = [part for part in parts if part.path not in cuda and idle not in part.name]
    roots = [part.path for part in rest if part.is_elf()]
    directories = {os.path.dirname(path) for path in cuda if ".so" in os.path.basename(path)}
    loaded = _loaded(roots, directories)
    return [*rest, *(part for part in parts if part.path in loaded)]


def _loaded(roots: Iterable[str], directories: Iterable[str]) -> set[str]:
    """The libraries in some directories that files load, directly or through one another.

    Args:
        roots: ELF files that are loaded in any case.
        directories: where the libraries lie.

    Returns:
        Their paths.
    """
    by_name: dict[str, str] = {}
    for directory in directories:
        for name in os.listdir(directory):
            by_name[name] = os.path.join(directory, name)
    paths: set[str] = set()
    todo = list(roots)
    while todo:
        elf_file = elf.read(todo.pop())
        for name in elf_file.needed if elf_file else ():
            path = by_name.get(name)
            if path is not None and path not in paths:
                paths.add(path)
                todo.append(path)
    return paths
