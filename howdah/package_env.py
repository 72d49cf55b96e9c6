"""What a relocatable Python environment is made of: interpreter, standard library, distributions.

It runs in a container where nothing is installed but glibc: the interpreter of this process, the
standard library, the distributions that a kind of job needs with all they require, and the shared
libraries that their extension modules load. `environment/bin/python` starts it, wherever it lies.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from howdah.errors import ClusterError, ConfigError

CORE = (
    "fsspec", "google-crc32c", "hdfs", "hdfs-native", "jinja2", "numpy", "pydantic", "pyyaml",
    "safetensors", "tokenizers",
)  # fmt: skip
KINDS: dict[str, tuple[str, ...]] = {
    # No pyspark: containers get it from the Spark that starts them, in its own version.
    "etl": (*CORE, "pandas", "pyarrow"),
}
"""Distributions that code of a kind imports; what they require comes by itself."""

_LEFT_OUT_STDLIB = frozenset(
    ("site-packages", "test", "tests", "idlelib", "idle_test", "tkinter", "turtledemo", "ensurepip",
     "lib2to3", "__pycache__")
)  # fmt: skip
_LEFT_OUT = frozenset(("tests", "__pycache__", "include"))
_LEFT_OUT_ENDINGS = (".pyc", ".pyx", ".pxd", ".pxi", ".h", ".hpp", ".a", ".lib")
_NO_MODULES = ("_tkinter.", "_test", "_ctypes_test.", "xxlimited", "_xx", "readline.", "_curses")
_GLIBC = re.compile(
    r"(ld-linux.*|linux-vdso|linux-gate|libc|libm|libpthread|libdl|librt|libutil|libresolv"
    r"|libanl|libmvec|libBrokenLocale|libthread_db)\.so(\.|$)"
)
_LDD = re.compile(r"^\s*(\S+) => (\S+|not found)", re.MULTILINE)

_LAUNCHER = """#!/bin/sh
# Starts the interpreter beside this file, wherever the environment was unpacked.
here="${0%/*}"
here="$(cd -P "$here" && pwd)" || exit 127
HOWDAH_LD_LIBRARY_PATH="${LD_LIBRARY_PATH-}"
LD_LIBRARY_PATH="${here%/bin}/lib/shared${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
export HOWDAH_LD_LIBRARY_PATH LD_LIBRARY_PATH
unset PYTHONHOME
PYTHONNOUSERSITE=1
export PYTHONNOUSERSITE
exec "$here/INTERPRETER" "$@"
"""

_SITE = '''"""Written by Howdah: what makes this environment whole, wherever it was unpacked."""

import os
import site
import sys

# The loader has read LD_LIBRARY_PATH by now; programs that this one starts get their own back.
if "HOWDAH_LD_LIBRARY_PATH" in os.environ:
    before = os.environ.pop("HOWDAH_LD_LIBRARY_PATH")
    if before:
        os.environ["LD_LIBRARY_PATH"] = before
    else:
        os.environ.pop("LD_LIBRARY_PATH", None)
# Python processes that this one starts must go through the launcher as well.
sys.executable = os.path.join(sys.prefix, "bin", "python")
packages = os.path.join(os.path.dirname(os.__file__), "site-packages")
if packages not in sys.path:  # Debian's interpreter looks elsewhere
    site.addsitedir(packages)
'''


@dataclass(frozen=True, kw_only=True)
class Part:
    """One file of the environment: where it goes, and its source (a path) or its contents."""

    name: str
    path: str | None = None
    contents: bytes | None = None
    executable: bool = False

    def read(self) -> bytes:
        """Its bytes."""
        if self.contents is not None:
            return self.contents
        with open(self.path, "rb") as file:
            return file.read()


def parts(kind: str) -> list[Part]:
    """All files of a kind's environment, sorted by name.

    Raises:
        ConfigError: no such kind.
        ClusterError: a distribution or a shared library that it needs is not installed here.
    """
    if kind not in KINDS:
        raise ConfigError(
            "no such kind of environment",
            where="--kind",
            expected=", ".join(KINDS),
            got=kind,
            remedy="give one of them",
        )
    found = [*_interpreter(), *_stdlib()]
    for distribution in closure(KINDS[kind]):
        found += _files(distribution)
    by_name = {part.name: part for part in found}
    for part in _shared_libraries(by_name.values()):
        by_name.setdefault(part.name, part)
    return [by_name[name] for name in sorted(by_name)]


# ------------------------------------------------------------------------------- distributions
def closure(roots: Sequence[str]) -> list[importlib.metadata.Distribution]:
    """The distributions and all that they require here, by their metadata; extras as asked for.

    Raises:
        ClusterError: one is not installed.
    """
    from packaging.requirements import Requirement

    found: dict[str, importlib.metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    todo = [(Requirement(root), "the environment") for root in roots]
    while todo:
        wanted, by = todo.pop()
        name = re.sub(r"[-_.]+", "-", wanted.name).lower()
        try:
            distribution = found.setdefault(name, importlib.metadata.distribution(wanted.name))
        except importlib.metadata.PackageNotFoundError:
            raise ClusterError(
                "a package that containers need is not installed here",
                where=sys.prefix,
                expected=f"{wanted} (needed by {by})",
                remedy=f"install it: pip install '{wanted}'",
            ) from None
        for extra in ("", *wanted.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for line in distribution.requires or ():
                needed = Requirement(line)
                asked = "extra" in str(needed.marker or "")
                if extra and not asked:
                    continue  # came with the bare name
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    todo.append((needed, name))
    return [found[name] for name in sorted(found)]


def _files(distribution: importlib.metadata.Distribution) -> Iterator[Part]:
    if distribution.files is None:
        raise ClusterError(
            "an installed package does not list its files",
            where=distribution.name,
            remedy="install it again with pip or uv",
        )
    for entry in distribution.files:
        if ".." in entry.parts or entry.is_absolute() or _LEFT_OUT & set(entry.parts[:-1]):
            continue  # scripts are not needed; tests and headers would double the size
        if entry.name.endswith(_LEFT_OUT_ENDINGS):
            continue
        path = str(distribution.locate_file(entry))
        if os.path.isfile(path):
            yield Part(name=f"{_SITE_PACKAGES}/{entry.as_posix()}", path=path)


# --------------------------------------------------------------------------------- interpreter
_VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
_SITE_PACKAGES = f"lib/{_VERSION}/site-packages"


def _interpreter() -> Iterator[Part]:
    binary = os.path.realpath(os.path.join(sys.base_prefix, "bin", _VERSION))
    if not os.path.isfile(binary):
        binary = os.path.realpath(sys.executable)
    launcher = _LAUNCHER.replace("INTERPRETER", _VERSION).encode()
    yield Part(name=f"bin/{_VERSION}", path=binary, executable=True)
    for name in ("python", "python3"):
        yield Part(name=f"bin/{name}", contents=launcher, executable=True)


def _stdlib() -> Iterator[Part]:
    root = sysconfig.get_path("stdlib")
    dynamic = sysconfig.get_config_var("DESTSHARED") or os.path.join(root, "lib-dynload")
    yield from _below(root, f"lib/{_VERSION}", skip=dynamic)
    yield from _below(dynamic, f"lib/{_VERSION}/lib-dynload")
    yield Part(name=f"lib/{_VERSION}/sitecustomize.py", contents=_SITE.encode())


def _below(root: str, target: str, skip: str | None = None) -> Iterator[Part]:
    for place, directories, names in os.walk(root):
        directories[:] = sorted(
            name
            for name in directories
            if name not in _LEFT_OUT_STDLIB
            and not name.startswith("config-")  # the static library, for building interpreters
            and os.path.join(place, name) != skip
        )
        for name in names:
            path = os.path.join(place, name)
            if name.endswith((".pyc", ".a")) or name.startswith(_NO_MODULES):
                continue
            if name == "sitecustomize.py" or not os.path.isfile(path):
                continue
            relative = os.path.relpath(path, root).replace(os.sep, "/")
            yield Part(name=f"{target}/{relative}", path=path)


# ------------------------------------------------------------------------------ shared objects
def _shared_libraries(found: Iterable[Part]) -> Iterator[Part]:
    """Libraries that the ELF files load from the system, glibc's own left out.

    Libraries that lie inside a distribution are found by its modules themselves ($ORIGIN).
    """
    inside = {os.path.basename(part.name) for part in found}
    elf = [part.path for part in found if part.path and _is_elf(part)]
    lacking: dict[str, str] = {}
    libraries: dict[str, str] = {}
    for start in range(0, len(elf), 100):
        argv = ["ldd", *elf[start : start + 100]]
        try:
            answer = subprocess.run(
                argv, capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin"}
            )
        except FileNotFoundError:
            raise ClusterError(
                "the shared libraries of an environment cannot be found out",
                where="ldd",
                remedy="install glibc's ldd (Debian: libc-bin)",
            ) from None
        for name, path in _LDD.findall(answer.stdout):
            if _GLIBC.match(name) or name in inside:
                continue
            if path == "not":  # "not found", cut at the blank
                lacking[name] = path
            else:
                libraries[name] = path
    lacking = {name: path for name, path in lacking.items() if name not in libraries}
    if lacking:
        raise ClusterError(
            "shared libraries of the environment are missing on this machine",
            where=sys.prefix,
            got=", ".join(sorted(lacking)),
            remedy="install them, or install the packages again that need them",
        )
    for name, path in libraries.items():
        yield Part(name=f"lib/shared/{name}", path=os.path.realpath(path))


def _is_elf(part: Part) -> bool:
    if not (part.executable or ".so" in os.path.basename(part.name)):
        return False
    with open(part.path, "rb") as file:
        return file.read(4) == b"\x7fELF"
