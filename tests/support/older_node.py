"""A node of Debian 11 (glibc 2.31) without Python, made of its packages, to run programs in."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

_PACKAGES = ("libc6", "libc-bin", "dash", "coreutils", "libselinux1", "libpcre2-8-0", "libattr1",
             "libacl1", "libgmp10", "libnss-extrausers")  # fmt: skip
USER = ("ada", 5001)
"""A user whom only a name service module of the node knows."""


def make(directory: Path) -> Path:
    """Unpack Debian 11 below a directory; its root. Skips without root or Debian's packages."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip("a root directory of Debian 11 is made and entered by root, with apt-get")
    root, packages = directory / "root", directory / "packages"
    for folder in (root, packages, directory / "lists/partial", directory / "archives/partial"):
        folder.mkdir(parents=True)
    (directory / "status").touch()
    format_ = "$(LABEL) $(REPO_URI)"
    sources = _apt([], ["indextargets", "--format", format_, "Created-By: Packages"])
    uri = next((line.split()[1] for line in sources.splitlines() if line.startswith("Debian ")), "")
    (directory / "sources.list").write_text(f"deb {uri} bullseye main\n")
    options = [
        f"Dir::Etc::sourcelist={directory}/sources.list", "Dir::Etc::sourceparts=-",
        f"Dir::State={directory}", f"Dir::State::lists={directory}/lists",
        f"Dir::State::status={directory}/status", f"Dir::Cache={directory}",
        "APT::Sandbox::User=root", "Acquire::Languages=none",
    ]  # fmt: skip
    try:
        _apt(options, ["update", "-q"])
        _apt(options, ["download", "-q", *_PACKAGES], cwd=packages)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"Debian 11's packages cannot be had: {error.stderr[-300:]}")
    for package in packages.iterdir():
        subprocess.run(["dpkg-deb", "--extract", package, root], check=True)
    _with_users(root)
    return root


def _apt(options: Sequence[str], words: Sequence[str], cwd: Path | None = None) -> str:
    argv = ["apt-get", *(word for option in options for word in ("-o", option)), *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True, cwd=cwd).stdout


def _with_users(root: Path) -> None:
    """Have a module in Red Hat's library directory know a user, found by the loader's cache."""
    for folder in ("etc", "tmp", "usr/lib64", "proc", "dev", "sys", "var/lib/extrausers"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc/nsswitch.conf").write_text("passwd: files extrausers\nhosts: files dns\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost\n")
    name, number = USER
    (root / "var/lib/extrausers/passwd").write_text(f"{name}:x:{number}:{number}::/:/bin/sh\n")
    module = root / "usr/lib/libnss_extrausers.so.2"
    module.rename(root / "usr/lib64" / module.name)
    (root / "etc/ld.so.conf").write_text("/usr/lib64\n")
    subprocess.run(["chroot", root, "/sbin/ldconfig"], check=True)


def inside(root: Path, environment: Path, directories: Sequence[str] = ()) -> list[str]:
    """What goes before a program to run it in a node.

    Args:
        root: a node's root directory.
        environment: an unpacked environment, which is /env there.
        directories: of this machine, which are there under the same names.
    """
    steps = [f'mount --rbind /{name} "$0/{name}"' for name in ("proc", "dev", "sys")]
    for source, target in [(str(environment), "/env"), *((path, path) for path in directories)]:
        place = f'"$0"{shlex.quote(target)}'
        steps.append(f"mkdir -p {place} && mount --bind {shlex.quote(source)} {place}")
    script = " && ".join([*steps, 'exec chroot "$0" "$@"'])
    return ["unshare", "--mount", "sh", "-c", script, str(root)]
