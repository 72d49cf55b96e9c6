"""Set up everything that Howdah needs, from the lock file, into one virtual environment.

    python3.11 tools/setup_env.py [--demo tensorflow|torch | --gpu tensorflow|torch] [--force]

Steps: system packages (apt, only what is missing) -> uv (pinned) -> .venv from requirements.lock
with hashes -> Howdah itself (editable) -> Horovod's wheel -> `horovodrun --check-build`. With
--demo it installs what `make demo` needs, a part of the same lock; a later run without it adds the
rest. A stamp in the environment lets a second run end in milliseconds; an interrupted run
continues. See docs/setup.md.

Standard library only.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import platform
import re
import sys
import tempfile
import time
from pathlib import Path

import build_horovod
import horovod_variant
import lock_subset
import system_packages
from toolkit import ROOT, Installer, SetupError, exclusive, guarded, output_of, say, step

LOGS = ROOT / "build" / "setup-logs"
TOOLS = (
    "toolkit", "system_packages", "horovod_variant", "build_horovod", "lock_subset", "setup_env",
)  # fmt: skip
DEMO_EXTRAS = ("etl", "serve", "baseline")
DEMO_PACKAGES = (
    "fonttools", "matplotlib", "networkx", "sqlalchemy",  # their docstrings are its corpus
    "cffi", "cloudpickle", "packaging",  # Horovod's code imports them
    "pip", "setuptools", "wheel",  # Horovod's build
)  # fmt: skip
INDEX_REMEDY = (
    "check pip's settings (`pip config list`: index-url, extra-index-url, cert, proxy), with a "
    "mirror set PIP_INDEX_URL, and run again: downloads are kept"
)


@dataclasses.dataclass(frozen=True)
class Target:
    """One environment: its directory, its lock file, its Horovod.

    `demos` are the frameworks of whose demos it has the packages; without any it has them all.
    """

    venv: Path
    lock: Path
    variant: horovod_variant.Variant
    demos: tuple[str, ...] = ()

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.venv / "bin" / "python")

    @property
    def stamp(self) -> Path:
        """The file in the environment that describes what was set up."""
        return self.venv / "howdah-setup.json"


def target_for(
    gpu: str | None, cuda_archs: tuple[str, ...] = (), demo: str | None = None
) -> Target:
    """The CPU environment, whole or for demos, or the one of a GPU framework.

    Args:
        gpu: the framework of the GPU environment.
        cuda_archs: compute capabilities of the GPU environment.
        demo: the framework of a demo. What an earlier set-up has installed stays.
    """
    if gpu is None:
        whole = Target(ROOT / ".venv", ROOT / "requirements.lock", horovod_variant.Variant())
        stamp = read_stamp(whole)
        if demo is None or (stamp and not stamp.get("demos")):
            return whole
        demos = tuple(sorted({demo, *stamp.get("demos", ())}))
        return dataclasses.replace(
            whole, demos=demos, variant=horovod_variant.Variant(frameworks=demos)
        )
    return Target(
        ROOT / f".venv-gpu-{gpu}",
        ROOT / f"requirements-gpu-{gpu}.lock",
        horovod_variant.Variant(frameworks=(gpu,), gpu="nccl", cuda_archs=cuda_archs),
    )


def base_python() -> str:
    """The interpreter that virtual environments are created from."""
    return getattr(sys, "_base_executable", None) or sys.executable


def digest(*parts: Path | str) -> str:
    """SHA-256 over files' contents and texts."""
    total = hashlib.sha256()
    for part in parts:
        data = part.read_bytes() if isinstance(part, Path) else part.encode()
        total.update(hashlib.sha256(data).digest())
    return total.hexdigest()


def environment_key(target: Target) -> str:
    """A key that changes when the packages must be synced again."""
    return digest(
        target.lock,
        base_python(),
        platform.python_version(),
        str(target.venv),
        ",".join(target.demos),
    )


def setup_key(target: Target) -> str:
    """A key that changes when the result of set-up may change."""
    tools = [ROOT / "tools" / f"{name}.py" for name in TOOLS]
    return digest(
        environment_key(target),
        horovod_variant.PATCH,
        ROOT / "pyproject.toml",
        ROOT / "setup.py",
        repr(target.variant),
        *tools,
    )


def read_stamp(target: Target) -> dict:
    """The contents of the stamp; empty if set-up has not finished."""
    try:
        stamp = json.loads(target.stamp.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) and os.path.exists(target.python) else {}


def write_stamp(target: Target, stamp: dict) -> None:
    """Replace the stamp atomically."""
    temporary = target.stamp.with_suffix(".tmp")
    temporary.write_text(json.dumps(stamp, indent=2) + "\n")
    os.replace(temporary, target.stamp)


def check_platform() -> None:
    """Refuse a platform that the lock file is not for.

    Raises:
        SetupError: this is not Python 3.11, or not Linux.
    """
    if sys.version_info[:2] != (3, 11):
        raise SetupError(
            f"this is Python {platform.python_version()}; Howdah's lock file is for 3.11",
            remedy="run tools/setup.sh, or PYTHON=/path/to/python3.11 make setup",
        )
    if sys.platform != "linux":
        raise SetupError(
            f"this is {platform.system()}; Howdah's lock file is for Linux",
            remedy="use a Linux machine or a container of Debian 12",
        )


def build_constraints(lock: Path) -> str:
    """The locked setuptools and wheel, for the few packages that come as source.

    Raises:
        SetupError: the lock does not have them.
    """
    text = lock.read_text()
    pins = re.findall(r"^(?:setuptools|wheel)==.*(?:\n +--hash=.*)*", text, re.MULTILINE)
    if not pins:
        raise SetupError(f"{lock} does not have setuptools", remedy="make lock")
    return "\n".join(pins) + "\n"


def sync_environment(target: Target, installer: Installer) -> None:
    """Create the environment if necessary, and sync its packages with the lock."""
    configuration = target.venv / "pyvenv.cfg"
    home = f"home = {Path(base_python()).parent}"
    usable = output_of([target.python, "-c", "pass"]) is not None
    if not (usable and configuration.is_file() and home in configuration.read_text()):
        installer.run(
            ["venv", "--python", base_python(), "--clear", target.venv],
            "venv.log",
            what="creating the virtual environment",
            remedy=f"is {target.venv.parent} writable, and is there disk space?",
        )
    with tempfile.TemporaryDirectory() as folder:
        constraints, packages = Path(folder, "build.txt"), Path(folder, target.lock.name)
        constraints.write_text(build_constraints(target.lock))
        packages.write_text(locked_packages(target))
        installer.run(
            [
                "pip", "sync", "--python", target.python, "--require-hashes", "--compile-bytecode",
                "--build-constraints", constraints, packages,
            ],
            "packages.log",
            what=f"installing {target.lock.name}",
            remedy=INDEX_REMEDY,
        )  # fmt: skip


def locked_packages(target: Target) -> str:
    """The lines of the lock file for the packages of this environment."""
    if not target.demos:
        return target.lock.read_text()
    names = lock_subset.names_of_extras([*DEMO_EXTRAS, *target.demos])
    return lock_subset.subset(target.lock, names | set(DEMO_PACKAGES))


def install_project(target: Target, installer: Installer) -> None:
    """Install Howdah itself, editable; this needs no index."""
    installer.run(
        ["pip", "install", "--python", target.python, "--no-deps", "--no-index",
         "--no-build-isolation", "--reinstall-package", "howdah", "--editable", ROOT],
        "project.log",
        what="installing Howdah",
        remedy="see pyproject.toml",
    )  # fmt: skip


def install_horovod(target: Target, installer: Installer, sdist: Path | None) -> None:
    """Install Horovod's wheel for this environment, unless the same build is installed."""
    wheel, version = build_horovod.provide_wheel(
        installer, target.python, target.variant, sdist=sdist
    )
    if horovod_variant.probe(target.python)["horovod"] != version:
        build_horovod.install_wheel(installer, target.python, wheel)
    say(build_horovod.verify_installed(target.python, target.variant, installer.logs))


def set_up(target: Target, *, force: bool, horovod: bool = True) -> None:
    """Run the steps that are not done yet.

    Args:
        target: the environment.
        force: run all steps again.
        horovod: False: end before Horovod; a later run goes on there.

    Raises:
        SetupError: a step failed; the next run continues from there.
    """
    started = time.monotonic()
    key, packages_key = setup_key(target), environment_key(target)
    name = target.venv.name

    def is_ready() -> bool:
        stamp = read_stamp(target)
        return not force and (
            stamp.get("key") == key or (not horovod and stamp.get("project") == key)
        )

    if is_ready():
        say(f"set-up: {name} is up to date")
        return
    with exclusive(ROOT / "build" / "setup.lock", "another set-up"):
        if is_ready():
            say(f"set-up: {name} was set up meanwhile")
            return
        check_platform()
        with step("system packages"):
            system_packages.install_missing(LOGS, demo=bool(target.demos))
        installer = Installer(base_python(), LOGS)
        with step(f"uv {installer.version}"):
            installer.ready()
        stamp = {} if force else read_stamp(target)
        done = {"packages": packages_key, "demos": target.demos}
        target.stamp.unlink(missing_ok=True)  # from here on the environment is incomplete
        if stamp.get("packages") != packages_key:
            with step(f"{name} from {target.lock.name} (minutes the first time)"):
                sync_environment(target, installer)
        write_stamp(target, done)
        with step("Howdah itself"):
            install_project(target, installer)
        done["project"] = key
        write_stamp(target, done)
        if horovod:
            with step("Horovod"):
                sdist = os.environ.get("HOROVOD_SDIST")
                install_horovod(target, installer, Path(sdist) if sdist else None)
            write_stamp(target, done | {"key": key})
    say(f"set-up: {name} is ready after {time.monotonic() - started:.0f} s")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--gpu", choices=horovod_variant.FRAMEWORKS, help="the GPU environment")
    kind.add_argument(
        "--demo", choices=horovod_variant.FRAMEWORKS, help="only what `make demo` needs"
    )
    parser.add_argument(
        "--cuda-archs", default="", help="with --gpu: 90 or 80,90; default: the GPU's"
    )
    parser.add_argument("--force", action="store_true", help="do every step again")
    parser.add_argument(
        "--without-horovod", action="store_true", help="end before Horovod is compiled"
    )
    options = parser.parse_args()
    archs = tuple(filter(None, options.cuda_archs.split(",")))
    target = target_for(options.gpu, archs, options.demo)
    set_up(target, force=options.force, horovod=not options.without_horovod)


if __name__ == "__main__":
    sys.exit(guarded(main))
