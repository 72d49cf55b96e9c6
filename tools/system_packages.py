"""Programs that pip cannot install (MPI, Java, a compiler): missing ones are installed with apt.

Standard library only.
"""

from __future__ import annotations

import dataclasses
import glob
import os
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from horovod_variant import find_cmake
from toolkit import SetupError, output_of, run_logged, say

JAVA_MINIMUM = 17  # Spark 4's


@dataclasses.dataclass(frozen=True)
class Need:
    """A program that the system must have.

    `present` checks for it; `packages` are Debian's packages, each a choice of names of which the
    first that exists is installed. `before` are small files, path and text, that are written before
    the packages are installed: they keep Debian from starting their services. `demo`: `make demo`
    needs it too.
    """

    name: str
    present: Callable[[], bool]
    packages: tuple[tuple[str, ...], ...]
    before: tuple[tuple[str, str], ...] = ()
    demo: bool = False


def java_version(java: str | None) -> int | None:
    """Major version of a `java` program (8 for "1.8.0_402"), None where it does not run."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', output_of([java or "java", "-version"]) or "")
    if match is None:
        return None
    major = int(match.group(1))
    return int(match.group(2) or 0) if major == 1 else major


def _has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    return (java_version(java) or 0) >= JAVA_MINIMUM if java else False


def _has_cmake() -> bool:
    try:
        find_cmake()
    except SetupError:
        return False
    return True


def _has_cxx17() -> bool:
    compiler = os.environ.get("CXX") or shutil.which("g++")
    version = output_of([compiler, "-dumpversion"]) if compiler else None
    return version is not None and int(version.split(".")[0]) >= 9


def _has(*programs: str) -> Callable[[], bool]:
    return lambda: all(shutil.which(program) for program in programs)


def _has_beside_sbin(*programs: str) -> Callable[[], bool]:
    """A check for programs in /usr/sbin, which a plain user's PATH may lack."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    return lambda: all(shutil.which(program, path=path) for program in programs)


def _has_postgresql() -> bool:
    # Debian keeps its programs off the PATH, one directory for each version.
    return shutil.which("initdb") is not None or bool(glob.glob("/usr/lib/postgresql/*/bin/initdb"))


def _has_headers() -> bool:
    return (Path(sysconfig.get_path("include")) / "Python.h").is_file()


def _has_venv() -> bool:
    return output_of([sys.executable, "-c", "import ensurepip, venv"]) is not None


def needs() -> list[Need]:
    """All that set-up and training need of the system."""
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    return [
        Need(
            "Open MPI",
            _has("mpirun", "mpicc", "mpicxx"),
            (("openmpi-bin",), ("libopenmpi-dev",)),
            demo=True,
        ),
        Need("a C++17 compiler", _has_cxx17, (("g++",),), demo=True),
        Need("make", _has("make"), (("make",),), demo=True),
        Need("CMake 3", _has_cmake, (("cmake",),), demo=True),
        Need("patch", _has("patch"), (("patch",),), demo=True),
        Need("strip", _has("strip"), (("binutils",),), demo=True),
        Need("Python's headers", _has_headers, ((f"{python}-dev", "python3-dev"),), demo=True),
        Need("Python's venv module", _has_venv, ((f"{python}-venv", "python3-venv"),), demo=True),
        Need(
            f"Java {JAVA_MINIMUM} or later",
            _has_java,
            (("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless"),),
            demo=True,
        ),
        # The mini cluster: Maven fetches Hadoop, its Kerberos variant runs a real KDC.
        Need("Maven", _has("mvn"), (("maven",),)),
        Need(
            "a Kerberos KDC",
            _has_beside_sbin("krb5kdc", "kdb5_util", "kadmin.local", "kinit"),
            (("krb5-kdc",), ("krb5-admin-server",), ("krb5-user",)),
        ),
        Need("Kerberos' headers", _has("krb5-config"), (("libkrb5-dev",),)),
        # Tests with slow links between ranks: network namespaces, shaped.
        Need("ip and tc", _has_beside_sbin("ip", "tc"), (("iproute2",),)),
        # Airflow's database; Howdah starts its own, so Debian's need not run.
        Need(
            "PostgreSQL",
            _has_postgresql,
            (("postgresql",),),
            before=(
                (
                    "/etc/postgresql-common/createcluster.d/howdah.conf",
                    "create_main_cluster = false\n",
                ),
            ),
        ),
        # Tests: edge nodes by SSH, Airflow's pages. No SSH server begins to listen on this machine.
        Need(
            "an SSH server",
            _has_beside_sbin("sshd", "ssh-keygen"),
            (("openssh-server",),),
            before=(("/etc/ssh/sshd_not_to_be_run", ""),),
        ),
        Need(
            "Chromium and its driver",
            _has("chromium", "chromedriver"),
            (("chromium",), ("chromium-driver",)),
        ),
    ]


def missing_needs(needs: Sequence[Need]) -> list[Need]:
    """The needs that the system does not have."""
    return [need for need in needs if not need.present()]


def apt_prefix() -> list[str]:
    """Prefix of apt-get: empty for root, else sudo (which may ask for a password now).

    Raises:
        SetupError: this is not root, and sudo does not work.
    """
    if os.geteuid() == 0:
        return []
    sudo = shutil.which("sudo")
    if sudo and sys.stdin.isatty() and output_of([sudo, "-n", "true"]) is None:
        os.spawnvp(os.P_WAIT, sudo, [sudo, "-v"])
    if sudo and output_of([sudo, "-n", "true"]) is not None:
        return [sudo, "-n"]
    raise SetupError("installing system packages needs root, and sudo does not work here")


def install_missing(logs: Path, *, demo: bool = False) -> None:
    """Install missing programs with apt-get.

    Args:
        logs: directory for apt-get's output.
        demo: only those that `make demo` needs.

    Raises:
        SetupError: the system is not a Debian, sudo does not work, a package does not exist, or
            apt-get failed; the remedy names the command for an administrator.
    """
    lacking = missing_needs([need for need in needs() if need.demo or not demo])
    if not lacking:
        return
    names = ", ".join(need.name for need in lacking)
    firsts = " ".join(choice[0] for need in lacking for choice in need.packages)
    by_hand = f"have these installed, then run again (Debian: apt-get install {firsts})"
    if not shutil.which("apt-get"):
        raise SetupError(f"missing: {names}; apt-get is not available", remedy=by_hand)
    try:
        prefix = apt_prefix()
    except SetupError as error:
        raise SetupError(f"missing: {names}; {error.what}", remedy=by_hand) from error
    say(f"    missing: {names}")
    run_logged(
        [*prefix, "apt-get", "update", "-q"], logs / "apt-update.log", what="apt-get update",
        remedy=by_hand,
    )  # fmt: skip
    packages = [_pick(choice) for need in lacking for choice in need.packages]
    for path, text in (file for need in lacking for file in need.before):
        _put(prefix, path, text, logs)
    run_logged(
        [
            *prefix, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "-q",
            "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", *packages,
        ],
        logs / "apt-install.log",
        what="apt-get install " + " ".join(packages),
        remedy=by_hand,
    )  # fmt: skip
    still = missing_needs(lacking)
    if still:
        raise SetupError(
            "installed, but still not found: " + ", ".join(need.name for need in still),
            remedy="check PATH, JAVA_HOME, CXX and HOROVOD_CMAKE: they may point elsewhere",
        )


def _put(prefix: Sequence[str], path: str, text: str, logs: Path) -> None:
    """Write a file as root, unless it exists."""
    if os.path.exists(path):
        return
    with tempfile.NamedTemporaryFile("w") as file:
        file.write(text)
        file.flush()
        run_logged(
            [*prefix, "install", "-D", "-m", "644", file.name, path],
            logs / "apt-before.log",
            what=f"writing {path}",
            remedy="write it by hand; or install the packages yourself",
        )


def _pick(choice: tuple[str, ...]) -> str:
    for package in choice:
        policy = output_of(["apt-cache", "policy", package]) or ""
        if re.search(r"Candidate: (?!\(none\))\S", policy):
            return package
    raise SetupError(
        f"apt does not have {' or '.join(choice)}",
        remedy="check /etc/apt/sources.list (Debian 12's main archive has them)",
    )
