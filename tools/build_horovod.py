"""Build Horovod's wheel for the installed frameworks, or take it from the cache.

    python tools/build_horovod.py --python .venv/bin/python --install

Horovod's last release needs `patches/horovod-0.28.1.patch` to build with current frameworks. Its
source comes from the user's package index, is checked by its SHA-256, patched, built, stripped, and
kept under $HOWDAH_CACHE/wheels by a key of everything that the result depends on. The key is part
of the wheel's version, so `pip list` shows which build an environment has.

Standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from horovod_variant import (
    COMPILER_FLAGS,
    FRAMEWORKS,
    OLDER_LIBSTDCXX,
    PATCH,
    PORTABLE_PLATFORM,
    SDIST_SHA256,
    TOOLCHAIN,
    TOOLCHAIN_SHA256,
    VERSION,
    Variant,
    build_inputs,
    cache_key,
    check_variant,
    find_cmake,
    gpu_environment,
    newer_versions,
    probe,
    wheel_version,
)
from toolkit import (
    ROOT,
    Installer,
    SetupError,
    cache_root,
    exclusive,
    guarded,
    run_logged,
    say,
    sha256_of,
    step,
)


# ---------------------------------------------------------------------------------------- source
def check_sdist(path: Path) -> Path:
    """The source distribution, if it is the release that the patch is for.

    Raises:
        SetupError: its SHA-256 differs.
    """
    got = sha256_of(path)
    if got != SDIST_SHA256:
        raise SetupError(
            f"{path} is not horovod {VERSION} as released: SHA-256 {got}, expected {SDIST_SHA256}",
            remedy="remove it and run again; if that fails, the package index or a proxy serves "
            "another file",
        )
    return path


def fetch_sdist(installer: Installer, python: str, file: Path | None) -> Path:
    """The checked source: this file, the cached one, or the one of the user's package index."""
    if file is not None:
        if not file.is_file():
            raise SetupError(f"no such file: {file}", remedy=f"--sdist horovod-{VERSION}.tar.gz")
        return check_sdist(file)
    kept = cache_root() / "sdists" / f"horovod-{VERSION}.tar.gz"
    if kept.is_file():
        return check_sdist(kept)
    download(
        installer, python, f"horovod=={VERSION} --hash=sha256:{SDIST_SHA256}", kept,
        ("--no-binary", ":all:", "--no-build-isolation"),
        remedy=f"without one set HOROVOD_SDIST=horovod-{VERSION}.tar.gz",
    )  # fmt: skip
    return check_sdist(kept)


def download(
    installer: Installer,
    python: str,
    requirement: str,
    target: Path,
    options: Sequence[str],
    remedy: str,
) -> None:
    """Put the one file of a requirement with its hash, from the user's index, at `target`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as folder:
        requirements = Path(folder) / "requirements.txt"
        requirements.write_text(requirement + "\n")
        # pip checks the hash before it runs the package's own setup.py for the metadata.
        run_logged(
            [
                *installer.pip, "--python", python, "download", "--no-deps", "--require-hashes",
                *options, "-d", folder, "-r", requirements,
            ],
            installer.logs / "horovod-download.log",
            what=f"fetching {target.name}",
            remedy=f"pip must reach a package index (see `pip config list`); {remedy}",
        )  # fmt: skip
        os.replace(Path(folder) / target.name, target)


def download_built(installer: Installer, python: str, key: str, folder: Path) -> Path | None:
    """The wheel of this key in the user's package index or `find-links`, put into `folder`."""
    try:
        run_logged(
            [
                *installer.pip, "--python", python, "download", "--no-deps", "--retries", "1",
                "--only-binary", ":all:", "-d", folder, f"horovod=={wheel_version(key)}",
            ],
            installer.logs / "horovod-built.log",
            what="looking for the wheel in the package index",
        )  # fmt: skip
    except SetupError:
        return None
    return next(folder.glob("*.whl"), None)


def unpack(sdist: Path, target: Path, log: Path) -> Path:
    """Unpack the source into `target` and apply the patch; return the source's directory."""
    with tarfile.open(sdist) as archive:
        archive.extractall(target)  # its hash is checked
    source = target / f"horovod-{VERSION}"
    run_logged(
        ["patch", "-p1", "--batch", "--fuzz=0", "-d", source, "-i", PATCH],
        log,
        what="applying the patch to Horovod",
        remedy="apt-get install patch",
    )
    return source


# ----------------------------------------------------------------------------------------- build
def jobs_that_fit() -> int:
    """Parallel compiler jobs: one for each available core, with 1.5 GiB of memory for each."""
    cores = len(os.sched_getaffinity(0))
    try:
        text = Path("/proc/meminfo").read_text()
        free_gib = int(re.search(r"MemAvailable:\s+(\d+)", text).group(1)) / 2**20
    except (OSError, AttributeError):
        return cores
    return max(1, min(cores, int(free_gib / 1.5)))


def unpack_toolchain(installer: Installer, python: str, folder: Path) -> dict[str, str]:
    """Put the pinned compiler into `folder`; the build variables that have it used."""
    wheel = cache_root() / "sdists" / TOOLCHAIN
    if not wheel.is_file() or sha256_of(wheel) != TOOLCHAIN_SHA256:
        name, version = TOOLCHAIN.split("-")[:2]
        download(
            installer, python, f"{name}=={version} --hash=sha256:{TOOLCHAIN_SHA256}", wheel,
            ("--only-binary", ":all:"),
            remedy="or compile with this machine's compiler: --no-mpi in place of --portable",
        )  # fmt: skip
    triplet = "x86_64-linux-gnu"
    with (
        zipfile.ZipFile(wheel) as archive,
        archive.open(f"ppbt/_toolchain/{triplet}.tar.xz") as packed,
        tarfile.open(fileobj=packed, mode="r|xz") as files,
    ):
        files.extractall(folder)  # its hash is checked
    binaries = folder / triplet / "bin"
    addition = folder / "older-libstdc++.o"
    run_logged(
        [binaries / f"{triplet}-g++", "-O2", "-fPIC", "-c", OLDER_LIBSTDCXX, "-o", addition],
        installer.logs / "horovod-toolchain.log",
        what="compiling with the pinned compiler",
    )
    wrapper = folder / "g++"
    wrapper.write_text(
        f'''#!/bin/sh
case " $* " in *" -shared "*) set -- "$@" "{addition}" ;; esac
exec "{binaries}/{triplet}-g++" "$@"
'''
    )
    wrapper.chmod(0o755)
    plain = folder / triplet / triplet / "bin"  # ld, ar, strip, readelf without a prefix
    return {
        "CC": f"{binaries}/{triplet}-gcc",
        "CXX": str(wrapper),
        "PATH": os.pathsep.join([str(plain), os.environ.get("PATH", "/usr/bin:/bin")]),
    }


def check_versions(libraries: Sequence[Path], env: Mapping[str, str], log: Path) -> None:
    """Refuse libraries that would not load on every system of PORTABLE_PLATFORM."""
    listing = run_logged(
        ["readelf", "--version-info", "--wide", *libraries], log, what="reading symbols",
        env={**env, "LC_ALL": "C"},  # it translates "Name:"
    )  # fmt: skip
    if newer := newer_versions(listing):
        raise SetupError(
            f"the libraries need {', '.join(newer)}, which {PORTABLE_PLATFORM} lacks",
            remedy=f"add what they call to {OLDER_LIBSTDCXX}",
        )


def build_wheel(
    python: str,
    target: Mapping,
    variant: Variant,
    sdist: Path,
    key: str,
    out: Path,
    installer: Installer,
    jobs: int | None = None,
) -> Path:
    """Build, strip and write the wheel into `out`; return its path."""
    logs = installer.logs
    if not (Path(target["include"]) / "Python.h").is_file():
        raise SetupError(
            f"the headers of {python} are missing ({target['include']}/Python.h)",
            remedy="apt-get install python3-dev (of the same Python)",
        )
    cmake = find_cmake()
    with tempfile.TemporaryDirectory(prefix="horovod-build-") as folder:
        work = Path(folder)
        source = unpack(sdist, work, logs / "horovod-patch.log")
        # Variables that are not part of the key must not change the result.
        env = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "CMAKE_"))}
        for name in ("MFLAGS", "MAKELEVEL", "PYTHONPATH", "PYTHONHOME", "CUDA_HOME", "CUDACXX"):
            env.pop(name, None)
        if variant.portable:
            for name in COMPILER_FLAGS:
                env.pop(name, None)
            env |= unpack_toolchain(installer, python, work)
        bin_dir = str(Path(python).parent)
        env["PATH"] = bin_dir + os.pathsep + env.get("PATH", "/usr/bin:/bin")
        env |= {
            "HOROVOD_CMAKE": cmake,
            "HOROVOD_LOCAL_VERSION": wheel_version(key).split("+")[1],
            "HOROVOD_WITHOUT_MXNET": "1",
            "HOROVOD_WITH_GLOO": "1",
            "HOROVOD_WITH_MPI" if variant.mpi else "HOROVOD_WITHOUT_MPI": "1",
            "MAKEFLAGS": f"-j{jobs or jobs_that_fit()}",
            "TF_CPP_MIN_LOG_LEVEL": "3",
        }
        for framework, name in FRAMEWORKS.items():
            prefix = "HOROVOD_WITH" if framework in variant.frameworks else "HOROVOD_WITHOUT"
            env[f"{prefix}_{name.upper()}"] = "1"
        if variant.gpu == "nccl":
            env |= gpu_environment(target, variant, work)
        run_logged(
            [python, "setup.py", "build"],
            logs / "horovod-build.log",
            what="compiling Horovod",
            remedy="see the first `error:` in the log",
            env=env,
            cwd=source,
        )
        libraries = sorted((source / "build").glob("lib*/horovod/*/mpi_lib*.so"))
        if len(libraries) != len(variant.frameworks):
            raise SetupError(
                f"Horovod's build left {len(libraries)} libraries for {len(variant.frameworks)} "
                "frameworks",
                log=logs / "horovod-build.log",
            )
        # 117 MB of debug information for 4 MB of code.
        run_logged(
            ["strip", "--strip-unneeded", *libraries], logs / "strip.log",
            what="stripping Horovod", env=env,
        )  # fmt: skip
        if variant.portable:
            check_versions(libraries, env, logs / "horovod-versions.log")
        platform = ["--plat-name", PORTABLE_PLATFORM] if variant.portable else []
        run_logged(
            [python, "setup.py", "bdist_wheel", "--skip-build", "-d", out, *platform],
            logs / "horovod-wheel.log",
            what="packing Horovod's wheel",
            env=env,
            cwd=source,
        )
    (wheel,) = out.glob("*.whl")
    return wheel


# ----------------------------------------------------------------------------------------- cache
def cached_wheel(key: str) -> Path | None:
    """The complete wheel for this key in the cache, if any; a damaged one is removed."""
    folder = cache_root() / "wheels" / key
    try:
        record = json.loads((folder / "wheel.json").read_text())
        wheel = folder / record["wheel"]
        if sha256_of(wheel) == record["sha256"]:
            return wheel
        problem = "has changed"
    except FileNotFoundError:
        if not folder.exists():
            return None
        problem = "is incomplete"
    except (KeyError, ValueError):
        problem = "has a damaged record"
    say(f"    the cached wheel {folder} {problem}: building it again")
    shutil.rmtree(folder)
    return None


def keep_wheel(key: str, wheel: Path, inputs: Mapping[str, str]) -> Path:
    """Put a wheel and its record into the cache with one rename; return its path there."""
    folder = cache_root() / "wheels" / key
    staging = wheel.parent
    record = {"wheel": wheel.name, "sha256": sha256_of(wheel), "inputs": dict(inputs)}
    (staging / "wheel.json").write_text(json.dumps(record, indent=2) + "\n")
    os.rename(staging, folder)
    return folder / wheel.name


def provide_wheel(
    installer: Installer,
    python: str,
    variant: Variant,
    *,
    sdist: Path | None = None,
    jobs: int | None = None,
) -> tuple[Path, str]:
    """The wheel for this environment, from the cache or built now.

    Returns:
        (path of the wheel, its version).
    """
    variant = check_variant(variant)
    target = probe(python)
    inputs = build_inputs(target, variant)
    key = cache_key(inputs)
    wheels = cache_root() / "wheels"
    with exclusive(wheels / f"{key}.lock", "a build of the same Horovod"):
        wheel = cached_wheel(key)
        if wheel is not None:
            say(f"    from the cache: {wheel}")
            return wheel, wheel_version(key)
        staging = Path(tempfile.mkdtemp(dir=wheels, prefix=".build-"))
        try:
            if variant.portable:
                wheel = download_built(installer, python, key, staging)
            if wheel is None:
                source = fetch_sdist(installer, python, sdist)
                say("    compiling Horovod takes some minutes; the cache keeps the wheel")
                wheel = build_wheel(python, target, variant, source, key, staging, installer, jobs)
            return keep_wheel(key, wheel, inputs), wheel_version(key)
        finally:
            shutil.rmtree(staging, ignore_errors=True)  # after a success it was renamed


# ----------------------------------------------------------------------------------------- check
def parse_check_build(text: str) -> dict[str, set[str]]:
    """The parts that `horovodrun --check-build` ticks, by section.

    >>> parse_check_build("Available Controllers:\\n    [X] MPI\\n    [ ] Gloo\\n")
    {'Controllers': {'MPI'}}
    """
    ticked: dict[str, set[str]] = {}
    section = ""
    for line in text.splitlines():
        if heading := re.match(r"\s*Available ([\w ]+):", line):
            section = heading.group(1)
        elif mark := re.match(r"\s*\[X\] (\w+)", line):
            ticked.setdefault(section, set()).add(mark.group(1))
    return ticked


def missing_parts(ticked: Mapping[str, set[str]], variant: Variant) -> list[str]:
    """Parts of the variant that are not ticked."""
    required = {("Frameworks", FRAMEWORKS[framework]) for framework in variant.frameworks}
    required |= {("Controllers", "Gloo"), ("Tensor Operations", "Gloo")}
    if variant.mpi:
        required |= {("Controllers", "MPI"), ("Tensor Operations", "MPI")}
    if variant.gpu == "nccl":
        required.add(("Tensor Operations", "NCCL"))
    return sorted(
        f"{name} ({section})" for section, name in required if name not in ticked.get(section, ())
    )


def verify_installed(python: str, variant: Variant, logs: Path) -> str:
    """Run `horovodrun --check-build`, compare its table with the variant, and return it.

    Raises:
        SetupError: a part of the variant is not ticked.
    """
    log = logs / "horovod-check.log"
    env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONWARNINGS": "ignore"}
    text = run_logged(
        [Path(python).parent / "horovodrun", "--check-build"],
        log,
        what="horovodrun --check-build",
        env=env,
    )
    missing = missing_parts(parse_check_build(text), variant)
    if missing:
        raise SetupError(
            "Horovod is installed, but it lacks " + ", ".join(missing),
            remedy=f"rm -r {cache_root() / 'wheels'} and run again; if that fails, see the failing "
            "import in `horovodrun --check-build --verbose`",
            log=log,
        )
    start = text.find("Horovod v")
    return text[max(start, 0) :].strip()


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    # Made absolute (without following the link, which names the environment): the build runs in
    # the source's folder.
    parser.add_argument(
        "--python", default=str(ROOT / ".venv" / "bin" / "python"), type=os.path.abspath
    )
    parser.add_argument("--frameworks", default=",".join(FRAMEWORKS), help="comma-separated")
    parser.add_argument("--gpu", choices=("none", "nccl"), default="none")
    parser.add_argument("--cuda-archs", default="", help="compute capabilities: 90 or 80,90")
    parser.add_argument("--no-mpi", action="store_true", help="Gloo alone; no MPI needed to run it")
    parser.add_argument(
        "--portable",
        action="store_true",
        help=f"for {PORTABLE_PLATFORM}, by a pinned compiler; as --no-mpi",
    )
    parser.add_argument("--output", type=Path, help="directory that gets a copy of the wheel")
    parser.add_argument("--sdist", type=Path, default=os.environ.get("HOROVOD_SDIST"))
    parser.add_argument("--jobs", type=int, help="parallel compiler jobs")
    parser.add_argument("--install", action="store_true", help="install it, check it")
    return parser.parse_args()


def main() -> None:
    """Build (and install) the wheel, and print its path on stdout."""
    options = parse_arguments()
    variant = Variant(
        frameworks=tuple(filter(None, options.frameworks.split(","))),
        mpi=not (options.no_mpi or options.portable),
        gpu=options.gpu,
        cuda_archs=tuple(filter(None, options.cuda_archs.split(","))),
        portable=options.portable,
    )
    installer = Installer(sys.executable, ROOT / "build" / "setup-logs")
    installer.ready()
    with step("Horovod's wheel"):
        wheel, _ = provide_wheel(
            installer, options.python, variant, sdist=options.sdist, jobs=options.jobs
        )
    if options.install:
        install_wheel(installer, options.python, wheel)
        say(verify_installed(options.python, variant, installer.logs))
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        wheel = Path(shutil.copy2(wheel, options.output))
    print(wheel)


def install_wheel(installer: Installer, python: str, wheel: Path) -> None:
    """Put the wheel into the environment, with its bytecode."""
    installer.run(
        ["pip", "install", "--python", python, "--no-deps", "--no-index", "--compile-bytecode",
         wheel],
        "horovod-install.log",
        what="installing Horovod",
        remedy=None,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(guarded(main))
