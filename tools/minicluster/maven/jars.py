"""Hadoop's jars: fetched once with Maven, checked by a committed list of hashes, and cached."""

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
class JarSet:
    """A set of jars: the pom.xml that resolves to it, and the list of its hashes."""

    name: str
    pom: Path
    hashes: Path
    pages: str | None = None
    """The jar that is used only for its web pages."""


def fetch(say: Say, jar_set: JarSet | None = None) -> Path:
    """The directory with `lib/*.jar` and `webapps/`, fetched and verified if it does not exist.

    It is complete or absent, however a fetch ends: every file was checked by its hash.

    Args:
        jar_set: the jars; None: those of the mini cluster.

    Raises:
        ClusterError: mvn is missing or failed, or a jar differs from the list.
    """
    jar_set = jar_set or JarSet(f"hadoop-{HADOOP_VERSION}", POM, HASHES, WEB_PAGES)
    listed = jar_set.hashes.read_bytes()
    home = Path(cache_root()) / f"{jar_set.name}-{hashlib.sha256(listed).hexdigest()[:12]}"

    def make(fresh: str) -> None:
        attempt = Path(fresh)
        attempt.mkdir()
        lib = attempt / "lib"
        say(f"fetching {jar_set.name} with Maven (once; up to 160 MB)")
        _copy_dependencies(attempt, lib, say, jar_set.pom)
        verify(lib, parse_hashes(listed.decode()), jar_set.hashes)
        if jar_set.pages is not None:
            _unpack_web_pages(lib / jar_set.pages, attempt)
            # Its classes are shaded copies of those in the other jars.
            (lib / jar_set.pages).unlink()

    return Path(commit.cached(str(home), make))


def parse_hashes(text: str) -> dict[str, str]:
    """{file name: SHA-256 in hex} from a list in sha256sum's format."""
    return {name: digest for digest, name in (line.split() for line in text.splitlines() if line)}


def verify(lib: Path, listed: dict[str, str], hashes: Path = HASHES) -> None:
    """Compare the files of a directory with a list: the same names, the same bytes.

    Raises:
        ClusterError: with the files that are missing, not listed, or different.
    """
    present = {path.name for path in lib.iterdir()} if lib.is_dir() else set()
    wrong = [f"{name} is missing" for name in sorted(listed.keys() - present)]
    wrong += [f"{name} is not listed" for name in sorted(present - listed.keys())]
    for name in sorted(present & listed.keys()):
        with open(lib / name, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != listed[name]:
            wrong.append(f"{name} has SHA-256 {digest}, not {listed[name]}")
    if wrong:
        raise ClusterError(
            "Hadoop's jars differ from this version's list; none was kept",
            where=str(hashes),
            got="\n".join(wrong[:5] + ([f"... {len(wrong) - 5} more"] if len(wrong) > 5 else [])),
            remedy="remove org/apache/hadoop from Maven's local repository (~/.m2/repository) and "
            "try again; a mirror must pass files on unchanged",
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
        raise ClusterError("the jar lacks the web pages webapps/hdfs", where=str(jar))


def main(pom: str | Path = POM, hashes: str | Path = HASHES) -> None:
    """Rewrite the list of hashes after a change of pom.xml."""
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
