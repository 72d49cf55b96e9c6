"""Howdah's wheel and a relocatable Python environment, each named by the hash of its contents.

Code for a cluster's nodes is shipped, never installed there: built once, kept in the cache,
uploaded once, and found again by its hash.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import howdah
from howdah import ROOMS, __version__, storage
from howdah.core.activity import Progress
from howdah.core.cache import cache_root
from howdah.errors import StorageError
from howdah.packaging.environment import DESCRIPTION, kind_of, parts
from howdah.packaging.hashes import FileHashes
from howdah.packaging.hashes import sha256 as whole_file_sha256
from howdah.packaging.horovod import provide
from howdah.packaging.part import Part
from howdah.storage import commit

_FORMAT = 1
"""Raise it when the layout of archives changes for the same files."""
_READ_BYTES = 2**22
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time that zip knows


@dataclass(frozen=True, kw_only=True)
class Package:
    """A file to ship; its name contains `hash`: SHA-256 of its contents, 16 hex digits."""

    path: str
    name: str
    hash: str
    size: int
    """Bytes."""
    glibc: str | None = None
    """The glibc that an environment's files need; on a node with an older one it uses the one that
    it holds. None for other packages."""
    public: bool = True
    """True if other users may read it: it holds only published software, no user's file."""

    def as_dict(self) -> dict:
        """For --json."""
        answer = {"path": self.path, "name": self.name, "hash": self.hash, "bytes": self.size}
        return answer if self.glibc is None else {**answer, "glibc": self.glibc}


def cache_directory() -> str:
    """The directory of packages below `cache_root()`."""
    return os.path.join(cache_root(), "packages")


# --------------------------------------------------------------------------------------- wheel
def wheel(output: str | None = None) -> Package:
    """Howdah's wheel, made of the packages that this process imports, installed or not.

    Pure Python, so no build tool is needed; equal sources give equal bytes. Containers import from
    the wheel without unpacking it.

    Args:
        output: directory (any local path); none: the cache.
    """
    files = dict(sorted(_sources()))
    digest = _digest(
        (name, False, hashlib.sha256(data).hexdigest()) for name, data in files.items()
    )
    info = f"howdah-{__version__}.dist-info"
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: howdah\nVersion: {__version__}\n".encode()
    )
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: howdah\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    lines = [f"{name},sha256={_urlsafe(data)},{len(data)}\n" for name, data in files.items()]
    files[f"{info}/RECORD"] = f"{''.join(lines)}{info}/RECORD,,\n".encode()

    def write(target: str) -> None:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                entry = zipfile.ZipInfo(name, _EPOCH)
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, data)

    # The build tag must be a number: the hash, so that other sources have another name.
    tag = int(digest[:12], 16)
    return _cached(f"howdah-{__version__}-{tag}-py3-none-any.whl", digest, output, write)


def _urlsafe(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _sources() -> Iterable[tuple[str, bytes]]:
    """Files of Howdah's packages under the names that they have in a wheel."""
    folders = [Path(folder).resolve() for folder in howdah.__path__]
    core = folders[0]
    yield from _files(core, "howdah")
    for checkout in folders[1:]:
        for room in ROOMS:
            yield from _files(checkout / room, f"howdah/{room}")


def _files(folder: Path, name: str) -> Iterable[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.is_dir() or "__pycache__" in path.parts or path.suffix == ".pyc":
            continue
        if not path.name.startswith("."):
            yield f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes()


# --------------------------------------------------------------------------------- environment
def environment(
    kind: str,
    output: str | None = None,
    progress: Progress | None = None,
    *,
    horovod: str | None = None,
    extra: Sequence[str] = (),
) -> Package:
    """The relocatable environment of a kind (`kinds.KINDS`) as a .tar.gz or .tar.

    Its `bin/python` runs in any directory and needs only a shell. The hash is over its files, so an
    environment that was made before is found in the cache.

    Args:
        kind: one of `kinds.KINDS`.
        output: directory (any local path); none: the cache.
        progress: called with a line before a slow step.
        horovod: a Horovod wheel without MPI, of the kind's framework; none: found or built.
        extra: further distributions, with their requirements.
    """
    environment_kind = kind_of(kind)
    horovod_build = None
    if environment_kind.framework is not None:
        horovod_build = provide(environment_kind.framework, horovod, cache_directory(), progress)
    collected = parts(kind, horovod=horovod_build, extra=extra)
    about = json.loads(next(part.contents for part in collected if part.name == DESCRIPTION))
    hashes = FileHashes(os.path.join(cache_directory(), "hashes.json"))
    digest = _digest((part.name, part.executable, part.digest(hashes.of)) for part in collected)
    hashes.save()

    def write(target: str) -> None:
        if progress is not None:
            progress(f"packing the Python environment of kind {kind} ({len(collected):,} files)")
        _write_tar(target, collected, environment_kind.compressed)

    name = f"howdah-{kind}-{digest}.tar{'.gz' if environment_kind.compressed else ''}"
    return replace(_cached(name, digest, output, write), glibc=about["glibc"])


def _write_tar(target: str, parts: Iterable[Part], compressed: bool) -> None:
    with open(target, "wb") as file:
        if not compressed:
            _fill_tar(file, parts)
            return
        # Level 1 is three times faster than 6, for 8% more bytes. mtime=0: no time in the header.
        with gzip.GzipFile("", "wb", 1, file, mtime=0) as packed:
            _fill_tar(packed, parts)


def _fill_tar(file: BinaryIO, parts: Iterable[Part]) -> None:
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for part in parts:
            entry = tarfile.TarInfo(part.name)
            entry.mode = 0o755 if part.executable else 0o644
            with part.open() as contents:
                entry.size = contents.seek(0, os.SEEK_END)
                contents.seek(0)
                archive.addfile(entry, contents)


def zipped(directory: str, name: str, pattern: str, progress: Progress | None = None) -> Package:
    """A flat, uncompressed .zip of a directory's files, named by the hash of names and contents.

    Args:
        directory: local directory.
        name: the archive's name; its hash is added.
        pattern: of the files, e.g. "*.jar" (which are compressed already).
    """
    files = sorted(Path(directory).glob(pattern))
    digest = _digest((path.name, False, whole_file_sha256(path)) for path in files)

    def write(target: str) -> None:
        if progress is not None:
            progress(f"packing {len(files):,} files of {directory}")
        with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            for path in files:
                entry = zipfile.ZipInfo(path.name, _EPOCH)
                with path.open("rb") as source, archive.open(entry, "w") as inside:
                    while piece := source.read(2**20):
                        inside.write(piece)

    return _cached(f"{name}-{digest}.zip", digest, None, write)


def of_file(path: str) -> Package:
    """An existing file as a package: its hash and its name."""
    digest = _digest([("", False, whole_file_sha256(Path(path)))])
    name = f"{digest}-{os.path.basename(path)}"
    size = os.path.getsize(path)
    return Package(path=path, name=name, hash=digest, size=size, public=False)


def sha256(path: str) -> str:
    """SHA-256 of a local file, in hex; that of a large file is cached."""
    hashes = FileHashes(os.path.join(cache_directory(), "hashes.json"))
    digest = hashes.of(path)
    hashes.save()
    return digest


def stored_sha256(path: str) -> str:
    """SHA-256 of a file on any storage, which is read completely."""
    whole = hashlib.sha256()
    with storage.open_read(path) as file:
        while piece := file.read(_READ_BYTES):
            whole.update(piece)
    return whole.hexdigest()


# ------------------------------------------------------------------------------------- helpers
def _digest(files: Iterable[tuple[str, bool, str]]) -> str:
    whole = hashlib.sha256(f"format {_FORMAT}\n".encode())
    for name, executable, digest in files:
        whole.update(f"{digest} {'x' if executable else '-'} {name}\n".encode())
    return whole.hexdigest()[:16]


def _cached(name: str, digest: str, output: str | None, write: Callable[[str], None]) -> Package:
    """The file of that name in `output`, made if it does not exist: whole or not at all."""
    path = os.path.join(storage.local_path(output or cache_directory()), name)
    try:
        commit.cached(path, write)
    except OSError as error:
        raise StorageError(
            "a package cannot be written",
            where=path,
            got=str(error),
            remedy="free space, or point HOWDAH_CACHE elsewhere",
        ) from error
    return Package(path=path, name=name, hash=digest, size=os.path.getsize(path))


def publish(package: Package, directory: str, progress: Progress | None = None) -> str:
    """Upload a package to a storage directory, unless the same bytes are there; its URL.

    For a directory that keeps packages; containers run packages of a staging directory
    (howdah/packaging/staging.py). Several processes may upload at once: the name is the hash, the
    file appears whole, and a second upload replaces it by the same bytes.
    """
    target = storage.join(directory, package.name)
    same_size = storage.exists(target) and storage.size(target) == package.size
    if same_size and stored_sha256(target) == sha256(package.path):
        return target
    if progress is not None:
        progress(f"uploading {package.name} ({package.size / 2**20:,.0f} MiB) to {directory}")
    storage.make_dirs(directory)
    storage.upload(package.path, target)
    return target
