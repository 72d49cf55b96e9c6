"""Jars fetched once with Maven, held to a committed list of hashes, kept in the cache: Hadoop's."""

from __future__ import annotations

import functools
import hashlib
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from howdah.core.cache import cache_root
from howdah.errors import ClusterError
from howdah.packaging import maven
from howdah.storage import commit

HERE = Path(__file__).resolve().parent
POM = HERE / "pom.xml"
HASHES = HERE / "jars.sha256"
HADOOP_VERSION = "3.5.0"
WEB_PAGES = f"hadoop-client-minicluster-{HADOOP_VERSION}.jar"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Wanted:
    """A set of jars: what resolves to it, and the list that it is held to."""

    name: str
    pom: Path
    hashes: Path
    pages: str | None = None
    """The jar that is there for its web pages alone."""


def fetch(say: Say, wanted: Wanted | None = None) -> Path:
    """The directory with `lib/*.jar` and `webapps/`: fetched and verified where it is not there.

    It is whole or absent, however a fetch ends: everything in it has been held to its hash.

    Args:
        wanted: the mini cluster's own, if not given.

    Raises:
        ClusterError: no mvn, mvn failed, or a jar is not the one listed.
    """
    wanted = wanted or Wanted(f"hadoop-{HADOOP_VERSION}", POM, HASHES, WEB_PAGES)
    listed = wanted.hashes.read_bytes()
    home = Path(cache_root()) / f"{wanted.name}-{hashlib.sha256(listed).hexdigest()[:12]}"

    def make(fresh: str) -> None:
        attempt = Path(fresh)
        attempt.mkdir()
        lib = attempt / "lib"
        say(f"fetching {wanted.name} with Maven (once; up to 160 MB)")
        _copy_dependencies(attempt, lib, say, wanted.pom)
        verify(lib, parse_hashes(listed.decode()), wanted.hashes)
        if wanted.pages is not None:
            _unpack_web_pages(lib / wanted.pages, attempt)
            # Its classes are shaded copies of those in the other jars: it was wanted for its pages.
            (lib / wanted.pages).unlink()

    return Path(commit.cached(str(home), make))


def parse_hashes(text: str) -> dict[str, str]:
    """{file name: SHA-256 in hex} of a list in sha256sum's format."""
    return {name: digest for digest, name in (line.split() for line in text.splitlines() if line)}


def verify(lib: Path, listed: dict[str, str], hashes: Path = HASHES) -> None:
    """Hold the files of a directory to a list: the same names, the same bytes.

    Raises:
        ClusterError: names what is missing, not listed, or different.
    """
    there = {path.name for path in lib.iterdir()} if lib.is_dir() else set()
    wrong = [f"{name} is missing" for name in sorted(listed.keys() - there)]
    wrong += [f"{name} is not listed" for name in sorted(there - listed.keys())]
    for name in sorted(there & listed.keys()):
        with open(lib / name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != listed[name]:
            wrong.append(f"{name} has SHA-256 {digest}, not {listed[name]}")
    if wrong:
        raise ClusterError(
            "Hadoop's jars are not the ones that this version was made with; none was kept",
            where=str(hashes),
            got="\n".join(wrong[:5] + ([f"... {len(wrong) - 5} more"] if len(wrong) > 5 else [])),
            remedy="remove org/apache/hadoop from Maven's local repository (~/.m2/repository) and "
            "try again; behind a mirror, see that it passes files on unchanged",
        )


def _copy_dependencies(directory: Path, lib: Path, say: Say, source: Path) -> None:
    pom = directory / "pom.xml"
    shutil.copyfile(source, pom)
    maven.copy_dependencies(str(pom), str(lib), "Hadoop's jars", say)


def _unpack_web_pages(jar: Path, target: Path) -> None:
    """webapps/* of a jar: the NameNode and DataNodes do not start without their pages."""
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if re.fullmatch(r"webapps/[\w./-]*", name) and ".." not in name.split("/"):
                archive.extract(name, target)
    if not (target / "webapps" / "hdfs").is_dir():
        raise ClusterError("the jar holds no web pages", where=str(jar), expected="webapps/hdfs")


def main(pom: str | Path = POM, hashes: str | Path = HASHES) -> None:
    """Write the list of hashes anew from what a pom.xml resolves to; for who changes that."""
    with tempfile.TemporaryDirectory() as directory:
        lib = Path(directory, "lib")
        say = functools.partial(print, file=sys.stderr)
        _copy_dependencies(Path(directory), lib, say, Path(pom))
        lines = []
        for path in sorted(lib.iterdir()):
            with open(path, "rb") as file:
                lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    Path(hashes).write_text("".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
