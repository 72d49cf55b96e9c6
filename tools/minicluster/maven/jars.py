"""Hadoop's jars: fetched once with Maven, checked by a committed list of hashes, and cached."""

from __future__ import annotations

import functools
import hashlib
import re
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from howdah.core.cache import cache_root
from howdah.errors import ClusterError, UsageError
from howdah.packaging import maven
from howdah.storage import commit

HERE = Path(__file__).resolve().parent
POM = HERE / "pom.xml"
HADOOP_VERSION = "3.5.0"
VERSIONS = sorted(path.stem.partition("-")[2] for path in HERE.glob("hadoop-*.sha256"))
_OLD = {"pages.version": "3.3.6", "activation.scope": "runtime"}
_PROPERTIES: Mapping[str, Mapping[str, str]] = {"3.1.4": _OLD, "3.2.4": _OLD}
"""More properties of pom.xml. Maven Central has no jar with the web pages of 3.1.4 and 3.2.4, and
their ResourceManager needs a package that was part of Java 8."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class JarSet:
    """A set of jars: the pom.xml that resolves to it, and the list of its hashes."""

    name: str
    pom: Path
    hashes: Path
    pages: str | None = None
    """The jar that is used only for its web pages."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Values that replace those of the pom.xml's properties."""


METASTORE = JarSet(
    "hive-metastore-3.1.3", HERE / "metastore.xml", HERE / "hive-metastore-3.1.3.sha256"
)


def of_hadoop(version: str = HADOOP_VERSION) -> JarSet:
    """The jars of the mini cluster with a Hadoop of this version.

    Raises:
        UsageError: there is no list of its hashes.
    """
    if version not in VERSIONS:
        expected = ", ".join(VERSIONS)
        raise UsageError("the mini cluster has no such Hadoop", expected=expected, got=version)
    properties = {"hadoop.version": version, **_PROPERTIES.get(version, {})}
    pages = f"hadoop-client-minicluster-{properties.get('pages.version', version)}.jar"
    return JarSet(f"hadoop-{version}", POM, HERE / f"hadoop-{version}.sha256", pages, properties)


def fetch(say: Say, jar_set: JarSet | None = None) -> Path:
    """The directory with `lib/*.jar` and `webapps/`, fetched and verified if it does not exist.

    It is complete or absent, however a fetch ends: every file was checked by its hash.

    Args:
        jar_set: the jars; None: those of the mini cluster's default Hadoop.

    Raises:
        ClusterError: mvn is missing or failed, or a jar differs from the list.
    """
    jar_set = jar_set or of_hadoop()
    listed = jar_set.hashes.read_bytes()
    home = Path(cache_root()) / f"{jar_set.name}-{hashlib.sha256(listed).hexdigest()[:12]}"

    def make(fresh: str) -> None:
        attempt = Path(fresh)
        attempt.mkdir()
        lib = attempt / "lib"
        say(f"fetching {jar_set.name} with Maven (once; up to 160 MB)")
        _copy_dependencies(attempt, lib, say, jar_set.pom, jar_set.properties)
        verify(lib, parse_hashes(listed.decode()), jar_set.hashes)
        if jar_set.pages is not None:
            _unpack_web_pages(lib / jar_set.pages, attempt)
            # Its classes are shaded copies of those in the other jars.
            (lib / jar_set.pages).unlink()

    return Path(commit.cached(str(home), make))


def parse_hashes(text: str) -> dict[str, str]:
    """{file name: SHA-256 in hex} from a list in sha256sum's format."""
    return {name: digest for digest, name in (line.split() for line in text.splitlines() if line)}


def verify(lib: Path, listed: dict[str, str], hashes: Path) -> None:
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


def _copy_dependencies(
    directory: Path, lib: Path, say: Say, source: Path, properties: Mapping[str, str]
) -> None:
    text = source.read_text(encoding="utf-8")
    for name, value in properties.items():
        text = re.sub(f"<{name}>.*</{name}>", f"<{name}>{value}</{name}>", text)
    pom = directory / "pom.xml"
    pom.write_text(text, encoding="utf-8")
    maven.copy_dependencies(str(pom), str(lib), "Hadoop's jars", say)


def _unpack_web_pages(jar: Path, target: Path) -> None:
    """webapps/* of a jar: the NameNode and DataNodes do not start without their pages."""
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if re.fullmatch(r"webapps/[\w./-]*", name) and ".." not in name.split("/"):
                archive.extract(name, target)
    if not (target / "webapps" / "hdfs").is_dir():
        raise ClusterError("the jar lacks the web pages webapps/hdfs", where=str(jar))


def main(*words: str) -> None:
    """Rewrite a list of hashes after a change of its pom.xml.

    Args:
        words: a version of Hadoop (default: all), or the paths of another pom.xml and its list.
    """
    sets = [JarSet("", *map(Path, words))] if len(words) == 2 else None
    for jar_set in sets or map(of_hadoop, words or VERSIONS):
        with tempfile.TemporaryDirectory() as directory:
            lib = Path(directory, "lib")
            say = functools.partial(print, file=sys.stderr)
            _copy_dependencies(Path(directory), lib, say, jar_set.pom, jar_set.properties)
            lines = []
            for path in sorted(lib.iterdir()):
                with open(path, "rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                lines.append(f"{digest}  {path.name}\n")
        jar_set.hashes.write_text("".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
