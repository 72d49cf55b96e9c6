"""The Horovod of a shipped environment: for one framework, with Gloo and without MPI.

Nodes have no MPI library, and ranks on YARN connect by Gloo. The Horovod installed on the packaging
machine is usually built with MPI too (for `howdah train`); then another build replaces it.
"""

from __future__ import annotations

import glob
import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import howdah
from howdah.errors import ClusterError, UsageError
from howdah.packaging import elf, hashes
from howdah.process import isolation
from howdah.storage import commit

_BUILDER = Path(howdah.__file__).resolve().parent.parent / "tools" / "build_horovod.py"
_MPI = re.compile(r"libmpi(_cxx)?\.so")


@dataclass(frozen=True, kw_only=True)
class Horovod:
    """Horovod's files below `directory`, without the libraries of other frameworks."""

    directory: str
    version: str
    library: str
    """The framework's native library."""
    gpu: bool
    """True if it reduces with NCCL."""

    def files(self) -> list[str]:
        """Paths of its files, relative to `directory`, sorted."""
        candidates = []
        for part in ("horovod", f"horovod-{self.version}.dist-info"):
            for below, _, names in os.walk(os.path.join(self.directory, part)):
                candidates += [os.path.relpath(os.path.join(below, name), self.directory)
                          for name in names]  # fmt: skip
        mine = os.path.relpath(self.library, self.directory)
        return sorted(name for name in candidates if name == mine or "/mpi_lib" not in name)


def provide(
    framework: str,
    wheel: str | None,
    cache: str,
    progress: Callable[[str], None] | None = None,
) -> Horovod:
    """A framework's Horovod for a shipped environment.

    The given wheel; else the installed one, if it was built without MPI; else the portable one that
    the source tree's `tools/build_horovod.py` has cached, finds in the package index, or builds now
    (some minutes).

    Args:
        framework: tensorflow or torch.
        wheel: path of a wheel.
        cache: directory to unpack wheels in.
        progress: called with a line when a build starts.

    Raises:
        UsageError: the given wheel cannot be used.
        ClusterError: there is none, and none can be built here.
    """
    if wheel is not None:
        return _given(framework, wheel, cache)
    installed = _installed(framework)
    if installed is not None and not _needs_mpi(installed.library):
        return installed
    by_hand = f"in Howdah's source tree: {_build_command(framework, installed)} --install"
    if installed is not None and installed.gpu:
        raise ClusterError(
            "the installed Horovod needs MPI, which nodes do not have, and one for GPUs is not"
            " built automatically",
            where=installed.library,
            remedy=f"{by_hand} (on a machine without a GPU also --cuda-archs with the nodes'"
            " compute capabilities, such as 80,90); mpirun then starts no ranks here",
        )
    if not _BUILDER.is_file():
        raise ClusterError(
            f"a shipped environment needs a Horovod for {framework} without MPI",
            where=sys.prefix,
            got="one built with MPI" if installed else "none",
            remedy=by_hand,
        )
    return _unpacked(framework, _built(framework, progress), cache)


def _build_command(framework: str, installed: Horovod | None) -> str:
    """The command for a Horovod without MPI; with NCCL where the installed one has it."""
    gpu = installed is not None and installed.gpu
    frameworks = framework if gpu else _frameworks_here(framework)
    return (
        f"python tools/build_horovod.py --frameworks {frameworks}"
        f" {'--no-mpi --gpu nccl' if gpu else '--portable'} --python {sys.executable}"
    )


def _frameworks_here(framework: str) -> str:
    """This framework and the other one if it is installed, as the builder takes them."""
    return ",".join(n for n in ("tensorflow", "torch") if n == framework or find_spec(n))


def _library(directory: str, framework: str) -> str | None:
    libraries = glob.glob(os.path.join(glob.escape(directory), "horovod", framework, "mpi_lib*.so"))
    return libraries[0] if libraries else None


def _needs_mpi(library: str) -> bool:
    elf_file = elf.read(library)
    return elf_file is None or any(_MPI.match(name) for name in elf_file.needed)


def _in(directory: str, framework: str, version: str) -> Horovod | None:
    library = _library(directory, framework)
    if library is None:
        return None
    return Horovod(
        directory=directory, version=version, library=library, gpu=elf.needs(library, "libnccl")
    )


def _installed(framework: str) -> Horovod | None:
    try:
        distribution = importlib.metadata.distribution("horovod")
    except importlib.metadata.PackageNotFoundError:
        return None
    return _in(str(distribution.locate_file("")), framework, distribution.version)


def _given(framework: str, wheel: str, cache: str) -> Horovod:
    def refused(got: str) -> UsageError:
        return UsageError(
            f"this wheel is not a Horovod for {framework} without MPI",
            where=f"--horovod {wheel}",
            got=got,
            remedy=f"in Howdah's source tree: {_build_command(framework, _installed(framework))}",
        )

    if not os.path.isfile(wheel):
        raise refused("no such file")
    abi = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    if not re.fullmatch(rf"horovod-[^-]+-{abi}-.*\.whl", os.path.basename(wheel)):
        raise refused(f"a name that is not horovod-<version>-{abi}-...whl")
    try:
        build = _unpacked(framework, wheel, cache)
    except (zipfile.BadZipFile, ClusterError) as error:
        raise refused(str(getattr(error, "what", error))) from None
    if _needs_mpi(build.library):
        raise refused("one that loads MPI's libraries")
    # A library built for another release of the framework fails at its first import, on each node.
    answer = subprocess.run(
        isolation.code(f"import horovod.{framework}"), capture_output=True, text=True,
        check=False, env=isolation.environment(first=[build.directory]),
    )  # fmt: skip
    if answer.returncode != 0:
        last = answer.stderr.strip().splitlines()[-1:] or [f"exit code {answer.returncode}"]
        raise refused(f"one that does not load with the {framework} installed here: {last[0]}")
    return build


def _unpacked(framework: str, wheel: str, cache: str) -> Horovod:
    def extract(fresh: str) -> None:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(fresh)

    target = commit.cached(os.path.join(cache, f"horovod-{hashes.sha256(wheel)[:16]}"), extract)
    version = os.path.basename(wheel).split("-")[1]
    build = _in(target, framework, version)
    if build is None:
        raise ClusterError(f"a Horovod without {framework}", where=wheel)
    return build


def _built(framework: str, progress: Callable[[str], None] | None) -> str:
    # One build for all installed frameworks, as of `make wheels`: each archive takes its part.
    argv = [sys.executable, str(_BUILDER), "--python", sys.executable,
            "--frameworks", _frameworks_here(framework), "--portable"]  # fmt: skip
    output: list[str] = []
    # The script imports what lies beside it, which a job's driver is kept from.
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=isolation.restored()
    ) as tool:
        for line in tool.stderr:
            output.append(line.rstrip())
            if progress is not None and "compiling" in line:
                progress(f"Horovod for {framework} without MPI: {line.strip()}")
        answer = tool.stdout.read().strip()
    if tool.returncode != 0:
        raise ClusterError(
            f"Horovod for {framework} without MPI could not be built",
            where=str(_BUILDER),
            got="\n".join(output[-15:]),
        )
    return answer.splitlines()[-1]
