"""Jars by Maven, each held to its SHA-256, kept in the cache."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from howdah import storage
from howdah.core.activity import Progress
from howdah.core.cache import cache_root
from howdah.core.child import Child
from howdah.errors import ClusterError
from howdah.packaging.hashes import sha256

_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies"
_SAY_EVERY = 5.0  # seconds


@dataclass(frozen=True)
class Jar:
    """One file of a Maven repository."""

    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def name(self) -> str:
        """Its file's name."""
        return f"{self.artifact}-{self.version}.jar"


def fetch(jars: Sequence[Jar], what: str, progress: Progress) -> list[str]:
    """Local paths of jars: those in the cache, the others fetched by Maven first.

    Args:
        what: they are, for messages: "the jars of ...".

    Raises:
        ClusterError: there is no mvn, it failed, or a jar does not have the expected hash.
    """
    directory = os.path.join(cache_root(), "jars")
    storage.make_dirs(directory)
    missing = [jar for jar in jars if _digest(os.path.join(directory, jar.name)) != jar.sha256]
    if missing:
        progress(f"fetching {what} with Maven (once): {', '.join(jar.name for jar in missing)}")
        by_hand = (
            "; without a network put the file of a Maven repository into " + directory
            + ", or name a jar of your own in data.spark.conf: {spark.jars: FILE}"
        )  # fmt: skip
        with tempfile.TemporaryDirectory(prefix=".tmp-", dir=directory) as attempt:
            pom = os.path.join(attempt, "pom.xml")
            with open(pom, "w", encoding="utf-8") as file:
                file.write(_pom(missing))
            lib = os.path.join(attempt, "lib")
            copy_dependencies(pom, lib, what, progress, remedy=by_hand)
            for jar in missing:
                path = os.path.join(lib, jar.name)
                if (digest := _digest(path)) != jar.sha256:
                    raise ClusterError(
                        f"a file of {what} is not the one that this version was made with",
                        where=jar.name,
                        expected=f"SHA-256 {jar.sha256}",
                        got=f"SHA-256 {digest}" if digest else "no file",
                        remedy="remove it from Maven's local repository (~/.m2/repository), and"
                        " see that a mirror passes files on unchanged",
                    )
                os.replace(path, os.path.join(directory, jar.name))
    return [os.path.join(directory, jar.name) for jar in jars]


def copy_dependencies(
    pom: str, lib: str, what: str, progress: Progress, *, remedy: str = ""
) -> None:
    """Let Maven resolve a pom.xml into a directory, reporting now and then how far it is.

    Args:
        what: the jars are, for messages.
        remedy: a further one, for users without Maven or network.

    Raises:
        ClusterError: there is no mvn, or it failed.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise ClusterError(
            f"{what} cannot be fetched: there is no mvn on PATH",
            expected="Maven 3",
            remedy=f"apt-get install maven (`make hadoop` does it), or put mvn on PATH{remedy}",
        )
    argv = [maven, "-B", "-f", pom, _GOAL, "-DincludeScope=runtime", f"-DoutputDirectory={lib}"]
    log: list[str] = []
    with Child(argv, on_line=log.append, death_signal=signal.SIGKILL) as process:
        while (code := process.wait(_SAY_EVERY)) is None:
            fetched = sum("Downloaded from" in line for line in log)
            jars = len(os.listdir(lib)) if os.path.isdir(lib) else 0
            progress(f"  {fetched} files fetched, {jars} jars in place")
    if code != 0:
        output = [line.strip() for line in log if line.startswith("[ERROR]")] or log[-3:]
        raise ClusterError(
            f"{what} could not be fetched: mvn failed",
            where=" ".join(argv),
            got="\n".join(line.strip() for line in output[:4]) or f"exit code {code}",
            remedy="mvn must reach a Maven repository: behind a proxy or a mirror, set it in "
            f"~/.m2/settings.xml{remedy}",
        )


def _pom(jars: Sequence[Jar]) -> str:
    """A project that depends on these files, and on nothing that they depend on."""
    alone = (
        "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion>"
        "</exclusions>"
    )
    each = "".join(
        f"<dependency><groupId>{jar.group}</groupId><artifactId>{jar.artifact}</artifactId>"
        f"<version>{jar.version}</version>{alone}</dependency>"
        for jar in jars
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>howdah</groupId><artifactId>jars</artifactId><version>1</version>"
        f"<packaging>pom</packaging><dependencies>{each}</dependencies></project>\n"
    )


def _digest(path: str) -> str | None:
    try:
        return sha256(path)
    except FileNotFoundError:
        return None
