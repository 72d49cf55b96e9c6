"""The doctor's checks of the Python packages: versions by the lock file, Horovod's build."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Mapping

import howdah
from howdah.config.launchers import CARRIES, CommKind
from howdah.config.model import Config
from howdah.doctor.checks import Check
from howdah.errors import ConfigError
from howdah.packaging import elf
from howdah.process import isolation

FRAMEWORKS = ("tensorflow", "torch")
_GPU_ENVIRONMENTS = {f".venv-gpu-{framework}": framework for framework in FRAMEWORKS}
"""{name of an environment: its framework}, as `make setup-gpu` names them (tools/setup_env.py)."""

# Run in a child process: loading the library loads its framework's.
_LIST_FEATURES = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
print(*[name for name in ("mpi", "gloo", "nccl") if getattr(library, f"horovod_{name}_built")()])
"""


def locked_versions(path: str) -> dict[str, str]:
    """{package: version} of a lock file (pip's `name==version` lines)."""
    with open(path, encoding="utf-8") as file:
        return dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", file.read(), re.MULTILINE))


def find_lock() -> str | None:
    """Path of the lock file that this environment is set up from, in a checkout; None outside of
    one."""
    framework = _gpu_framework()
    name = "requirements.lock" if framework is None else f"requirements-gpu-{framework}.lock"
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(howdah.__file__))), name)
    return path if os.path.isfile(path) else None


def _gpu_framework() -> str | None:
    """The framework of `make setup-gpu`, if this environment is one of those, by its name."""
    return _GPU_ENVIRONMENTS.get(os.path.basename(sys.prefix))


def _set_up() -> str:
    """The command that sets this environment up."""
    framework = _gpu_framework()
    return "make setup" if framework is None else f"make setup-gpu FRAMEWORK={framework}"


def installed_version(package: str) -> str | None:
    """The installed version; None: the package is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_packages(env: Mapping[str, str], lock: str | None = None) -> Check:
    """A framework is installed, and all packages have the versions of the lock file."""
    versions = {name: installed_version(name) for name in (*FRAMEWORKS, "transformers", "pyspark")}
    description = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    name = "packages"
    if not any(versions[framework] for framework in FRAMEWORKS):
        return Check(name, "fail", description, f"{_set_up()} (or pip install 'howdah[torch]')")
    lock = lock or find_lock()
    if lock is None:
        return Check(name, "ok", f"{description}; no lock file here to compare with")
    locked = locked_versions(lock)
    wrong = [
        f"{package} {installed_version(package) or 'missing'} (locked: {version})"
        for package, version in sorted(locked.items())
        if installed_version(package) != version
    ]
    if wrong:
        shown = ", ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        return Check(name, "warn", f"{description}; not as locked: {shown}", _set_up())
    return Check(name, "ok", f"{description}; all {len(locked)} as locked")


def horovod_libraries() -> dict[str, str] | None:
    """{framework: path of Horovod's native library}; None: Horovod is not installed."""
    try:
        spec = importlib.util.find_spec("horovod")
    except ImportError:
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    out = {}
    for folder in spec.submodule_search_locations:
        for framework in FRAMEWORKS:
            where = os.path.join(folder, framework)
            for name in sorted(os.listdir(where)) if os.path.isdir(where) else ():
                if name.startswith("mpi_lib") and name.endswith(".so"):
                    out[framework] = os.path.join(where, name)
    return out


def carrier_of_job(config: Config) -> CommKind:
    """What carries the sums of a job's ranks in this Python's environment; imports no framework.

    Raises:
        ConfigError: it is not installed, or the job's other keys exclude it.
    """
    training = config.training
    kind = training.comm
    carried = horovod_carries(training.framework, gpu=config.job.worker.gpus > 0)
    if kind == "auto":
        kind = "horovod" if carried or training.framework not in CARRIES["torch"] else "torch"
    if kind == "torch":
        require_torch_job(config)
        return kind
    _require_horovod(training.framework)
    if not carried:
        raise ConfigError(
            "the installed Horovod was built without NCCL, and the job's workers have GPUs",
            where="training.comm: horovod",
            expected="training.comm: torch, or a Horovod with NCCL (`make setup-gpu`)",
            got=f"job.worker.gpus: {config.job.worker.gpus}",
            remedy="set training.comm: torch; job.worker.gpus: 0 trains on CPUs",
        )
    return kind


def horovod_carries(framework: str, *, gpu: bool) -> bool:
    """True if the installed Horovod sums this framework's gradients; imports neither.

    Args:
        gpu: they are a GPU's. PyTorch's Horovod hangs on those unless it was built with NCCL.
    """
    library = (horovod_libraries() or {}).get(framework)
    if library is None or not gpu or framework != "torch":
        return library is not None
    return elf.needs(library, "libnccl")


def require_torch_job(config: Config) -> None:
    """Refuse keys of a job that ranks of torch.distributed cannot follow.

    Raises:
        ConfigError: there is one.
    """
    if config.job.controller == "mpi":
        raise ConfigError(
            "MPI connects ranks of Horovod only",
            where="job.controller: mpi",
            expected="job.controller: gloo, or training.comm: horovod",
            got="ranks of torch.distributed",
            remedy="leave job.controller out",
        )
    if config.job.ports is not None:
        raise ConfigError(
            "ranks of torch.distributed listen on ports that the kernel chooses",
            where=f"job.ports: {config.job.ports}",
            expected="job.ports left out, or training.comm: horovod",
            got="ranks of torch.distributed",
            remedy="leave job.ports out, or install Horovod for torch and set training.comm to"
            " horovod",
        )


def _require_horovod(framework: str) -> None:
    libraries = horovod_libraries()
    if framework in (libraries or {}):
        return
    here = "; or leave training.comm out: torch.distributed needs no Horovod"
    here = here if framework == "torch" else ""
    raise ConfigError(
        f"Horovod for {framework} is not installed, but this job's ranks need it",
        where=f"Python's environment {sys.prefix}",
        expected=f"Horovod for {framework}, or job.workers: 1",
        got=f"Horovod for {', '.join(libraries)}" if libraries else "no Horovod",
        remedy="in Howdah's source tree: python tools/build_horovod.py --python"
        f" {sys.executable} --frameworks {framework} --install (docs/setup.md){here}",
    )


def check_horovod(env: Mapping[str, str]) -> Check:
    """Horovod is built for every framework that is installed, with MPI and Gloo, and loads.

    The native libraries list what they were built with. `horovodrun --check-build` prints the same,
    but imports the frameworks, which takes half a minute.
    """
    name = "Horovod"
    libraries = horovod_libraries()
    if libraries is None:
        if installed_version("tensorflow"):
            return Check(name, "fail", "not installed", _set_up())
        description = "not installed; torch.distributed connects PyTorch's ranks"
        return Check(name, "warn", description, f"{_set_up()}, for mpirun and horovodrun")
    version = installed_version("horovod") or "of unknown version"
    rebuild = (
        f"{_set_up()}; in another environment: tools/build_horovod.py --python PYTHON --install"
    )
    absent = [fw for fw in FRAMEWORKS if installed_version(fw) and fw not in libraries]
    if absent:
        return Check(name, "fail", f"{version}, not built for {', '.join(absent)}", rebuild)
    parts, lacking = [], []
    for framework, library in libraries.items():
        if not installed_version(framework):
            continue
        try:
            answer = subprocess.run(
                isolation.code(_LIST_FEATURES, library), env=isolation.environment(env), timeout=60,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            lacking.append(f"{framework} (its library did not load within 60 s)")
            continue
        if answer.returncode != 0:
            reason = (answer.stderr.strip().splitlines() or [f"exit code {answer.returncode}"])[-1]
            lacking.append(f"{framework} (its library does not load: {reason})")
            continue
        built = answer.stdout.split()
        parts.append(f"{framework}: {', '.join(built)}")
        lacking += [f"{part} for {framework}" for part in ("mpi", "gloo") if part not in built]
    description = f"{version}; " + "; ".join(parts)
    if lacking:
        # Gloo alone trains too, without mpirun; a library that does not load trains nothing.
        status = "warn" if all(item.startswith("mpi for") for item in lacking) else "fail"
        return Check(name, status, f"{description}; lacks {', '.join(lacking)}", rebuild)
    return Check(name, "ok", description)
