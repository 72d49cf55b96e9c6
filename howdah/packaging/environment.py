"""The files of a relocatable Python environment: interpreter, standard library, distributions.

It runs in a container where only a shell is installed. It holds the interpreter of this process,
the standard library, the distributions of a kind of job with their requirements, the shared
libraries that their extension modules load, and glibc, which is used where the node's is older than
these files need. `environment/bin/python` starts it from any directory;
`environment/howdah-environment.json` lists its contents and the glibc that they need.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence

from howdah.errors import ClusterError, ConfigError
from howdah.packaging.horovod import Horovod
from howdah.packaging.kinds import KINDS, Kind
from howdah.packaging.libraries import (
    LOADER,
    machine_glibc,
    newest_glibc,
    of_the_system,
    without_idle_cuda,
)
from howdah.packaging.part import Part

DESCRIPTION = "howdah-environment.json"

_LEFT_OUT_STDLIB = frozenset(
    ("site-packages", "test", "tests", "idlelib", "idle_test", "tkinter", "turtledemo", "ensurepip",
     "lib2to3", "__pycache__")
)  # fmt: skip
_LEFT_OUT = frozenset(("tests", "__pycache__", "include"))
_LEFT_OUT_ENDINGS = (".pyc", ".pyx", ".pxd", ".pxi", ".h", ".hpp", ".a", ".lib")
_NO_MODULES = ("_tkinter.", "_test", "_ctypes_test.", "xxlimited", "_xx", "readline.", "_curses")

_LAUNCHER = """#!/bin/sh
# Starts the interpreter beside this file, in any directory.
here="${0%/*}"
here="$(cd -P "$here" && pwd)" || exit 127
lib="${here%/bin}/lib"
libraries="$lib/shared${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
unset PYTHONHOME
PYTHONNOUSERSITE=1
export PYTHONNOUSERSITE
# On a node whose glibc is older than these files need, their own is used, by this process alone:
# the loader takes the path as an option, so that programs that Python starts do not inherit it.
if [ "${HOWDAH_GLIBC-}" != "NEEDED" ]; then
  version="$(getconf GNU_LIBC_VERSION 2>/dev/null)"
  case "$version" in "glibc "*) version="${version#glibc }" ;; *) version=0.0 ;; esac
  minor="${version#*.}"
  if [ "${version%%.*}" -lt MAJOR ] ||
      { [ "${version%%.*}" -eq MAJOR ] && [ "${minor%%.*}" -lt MINOR ]; }; then
    exec "$lib/glibc/LOADER" --library-path "$lib/glibc:$libraries" "$here/INTERPRETER" "$@"
  fi
  HOWDAH_GLIBC="NEEDED"
  export HOWDAH_GLIBC
fi
HOWDAH_LD_LIBRARY_PATH="${LD_LIBRARY_PATH-}"
LD_LIBRARY_PATH="$libraries"
export HOWDAH_LD_LIBRARY_PATH LD_LIBRARY_PATH
exec "$here/INTERPRETER" "$@"
"""

_SITE = '''"""Written by Howdah: makes this environment work in any directory."""

import os
import site
import sys

# The loader has read LD_LIBRARY_PATH; programs that this one starts get the original value.
if "HOWDAH_LD_LIBRARY_PATH" in os.environ:
    before = os.environ.pop("HOWDAH_LD_LIBRARY_PATH")
    if before:
        os.environ["LD_LIBRARY_PATH"] = before
    else:
        os.environ.pop("LD_LIBRARY_PATH", None)
# Python processes that this one starts must use the launcher too.
sys.executable = os.path.join(sys.prefix, "bin", "python")
packages = os.path.join(os.path.dirname(os.__file__), "site-packages")
if packages not in sys.path:  # Debian's interpreter looks elsewhere
    site.addsitedir(packages)
'''


def parts(kind: str, *, horovod: Horovod | None = None, extra: Sequence[str] = ()) -> list[Part]:
    """All files of a kind's environment, sorted by name.

    Args:
        kind: one of KINDS.
        horovod: the Horovod of a framework's kind.
        extra: further distributions, with their requirements.

    Raises:
        ConfigError: no such kind.
        ClusterError: a distribution or a shared library that it needs is not installed here.
    """
    environment_kind = kind_of(kind)
    collected = [*_interpreter(), *_stdlib()]
    taken = [name for name in environment_kind.optional if _installed(name)]
    distributions = closure(
        (*environment_kind.roots, *taken, *extra), without=environment_kind.without
    )
    for distribution in distributions:
        if horovod is None or distribution.name.lower() != "horovod":
            collected += _files(distribution, environment_kind)
    if horovod is not None:
        collected += [
            Part(name=f"{_SITE_PACKAGES}/{name}", path=os.path.join(horovod.directory, name))
            for name in horovod.files()
        ]
    if environment_kind.cpu_only or (horovod is not None and not horovod.gpu):
        collected = without_idle_cuda(collected, distributions)
    by_name = {part.name: part for part in collected}
    for part in of_the_system(by_name.values()):
        by_name.setdefault(part.name, part)
    glibc, by = newest_glibc(by_name.values())
    about = _description(kind, distributions, horovod, glibc, by)
    interpreter = by_name[f"bin/{_VERSION}"].path
    for part in (*machine_glibc(interpreter), *_launchers(glibc), about):
        by_name[part.name] = part
    return [by_name[name] for name in sorted(by_name)]


def _installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def kind_of(kind: str) -> Kind:
    """A kind by its name; ConfigError: no such kind."""
    if kind not in KINDS:
        raise ConfigError(
            "no such kind of environment", where="--kind", expected=", ".join(KINDS), got=kind
        )
    return KINDS[kind]


def _description(
    kind: str,
    distributions: Sequence[importlib.metadata.Distribution],
    horovod: Horovod | None,
    glibc: str,
    by: str,
) -> Part:
    packages = {distribution.name: distribution.version for distribution in distributions}
    if horovod is not None:
        packages["horovod"] = horovod.version
    about = {
        "kind": kind,
        "python": sys.version.split()[0],
        "machine": os.uname().machine,
        "glibc": glibc,
        "glibc_asked_by": by,
        "gpu": horovod is not None and horovod.gpu,
        "packages": packages,
    }
    return Part(name=DESCRIPTION, contents=(json.dumps(about, indent=2) + "\n").encode())


# ------------------------------------------------------------------------------- distributions
def closure(
    roots: Sequence[str], without: Iterable[str] = ()
) -> list[importlib.metadata.Distribution]:
    """The distributions and their requirements, by the metadata installed here.

    Args:
        roots: names, or requirements with extras.
        without: names to leave out, lower case with dashes.

    Raises:
        ClusterError: one is not installed.
    """
    from packaging.requirements import Requirement

    distributions: dict[str, importlib.metadata.Distribution] = {}
    seen: set[tuple[str, str]] = set()
    without = frozenset(without)
    todo = [(Requirement(root), "the environment") for root in roots]
    while todo:
        requirement, by = todo.pop()
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if name in without:
            continue
        try:
            distribution = distributions.setdefault(
                name, importlib.metadata.distribution(requirement.name)
            )
        except importlib.metadata.PackageNotFoundError:
            raise ClusterError(
                "a package that containers need is not installed here",
                where=sys.prefix,
                remedy=f"pip install '{requirement}' (needed by {by})",
            ) from None
        for extra in ("", *requirement.extras):
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            for line in distribution.requires or ():
                needed = Requirement(line)
                of_extra = "extra" in str(needed.marker or "")
                if extra and not of_extra:
                    continue  # added with the name without extras
                if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                    todo.append((needed, name))
    return [distributions[name] for name in sorted(distributions)]


def _files(distribution: importlib.metadata.Distribution, kind: Kind) -> Iterator[Part]:
    if distribution.files is None:
        raise ClusterError(
            "an installed package does not list its files",
            where=distribution.name,
            remedy="install it again with pip or uv",
        )
    for entry in distribution.files:
        if ".." in entry.parts or entry.is_absolute() or _LEFT_OUT & set(entry.parts[:-1]):
            continue  # no scripts; tests and headers would double the size
        if entry.name.endswith(_LEFT_OUT_ENDINGS):
            continue
        if not kind.wants(distribution.name, entry.as_posix()):
            continue
        path = str(distribution.locate_file(entry))
        if os.path.isfile(path):
            program = "bin" in entry.parts[:-1] and os.access(path, os.X_OK)
            name = f"{_SITE_PACKAGES}/{entry.as_posix()}"
            yield Part(name=name, path=path, executable=program)


# --------------------------------------------------------------------------------- interpreter
_VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
_SITE_PACKAGES = f"lib/{_VERSION}/site-packages"


def _interpreter() -> Iterator[Part]:
    binary = os.path.realpath(os.path.join(sys.base_prefix, "bin", _VERSION))
    if not os.path.isfile(binary):
        binary = os.path.realpath(sys.executable)
    yield Part(name=f"bin/{_VERSION}", path=binary, executable=True)


def _launchers(glibc: str) -> Iterator[Part]:
    major, minor = glibc.split(".")[:2]
    text = _LAUNCHER.replace("INTERPRETER", _VERSION).replace("NEEDED", glibc)
    text = text.replace("LOADER", LOADER)
    text = text.replace("MAJOR", major).replace("MINOR", minor)
    for name in ("python", "python3"):
        yield Part(name=f"bin/{name}", contents=text.encode(), executable=True)


def _stdlib() -> Iterator[Part]:
    root = sysconfig.get_path("stdlib")
    dynamic = sysconfig.get_config_var("DESTSHARED") or os.path.join(root, "lib-dynload")
    yield from _below(root, f"lib/{_VERSION}", skip=dynamic)
    yield from _below(dynamic, f"lib/{_VERSION}/lib-dynload")
    yield Part(name=f"lib/{_VERSION}/sitecustomize.py", contents=_SITE.encode())


def _below(root: str, target: str, skip: str | None = None) -> Iterator[Part]:
    for directory, directories, names in os.walk(root):
        directories[:] = sorted(
            name
            for name in directories
            if name not in _LEFT_OUT_STDLIB
            # config-* has the static library, used only to build interpreters
            and not name.startswith("config-")
            and os.path.join(directory, name) != skip
        )
        for name in names:
            path = os.path.join(directory, name)
            if name.endswith((".pyc", ".a")) or name.startswith(_NO_MODULES):
                continue
            if name == "sitecustomize.py" or not os.path.isfile(path):
                continue
            relative = os.path.relpath(path, root).replace(os.sep, "/")
            yield Part(name=f"{target}/{relative}", path=path)
