"""A class archive of Spark: its classes are parsed once, and later short JVMs map them.

A JVM of Spark loads and verifies ten thousand classes, which takes half of a small job's processor
time. The first JVM of a small local session writes them at its exit, when its user has the answer
already (JEP 350); later ones of the same Java and the same jars map the file. A JVM for which it is
missing, broken or of other jars loads its classes as usual, without a word.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import shlex

from howdah.core.cache import cache_root

SHORT_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m"
"""Options of a JVM that lives for seconds: without the second compiler, the collector's threads and
whole collections while classes are loaded it takes half of the processor time."""
_QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off -Xlog:class+path=off"
_ARCHIVES = ("SharedArchiveFile", "ArchiveClassesAtExit")


def options(home: str, java: str) -> str:
    """Options of a short JVM of the Spark at `home`: it uses the archive, or makes it.

    Args:
        java: path of the program.
    """
    if any(name in os.environ.get("SPARK_SUBMIT_OPTS", "") for name in _ARCHIVES):
        return SHORT_JVM
    try:
        if _major(java) < 17:  # an older one refuses these options
            return SHORT_JVM
        path = _path(home, java)
        if _whole(path):
            return f"{SHORT_JVM} {shlex.quote(f'-XX:SharedArchiveFile={path}')} {_QUIET}"
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        others = glob.escape(path.rpartition("-")[0]) + "-*.jsa"  # of other jars, or cut off
        for old in glob.glob(others):
            with contextlib.suppress(OSError):
                os.remove(old)
    except OSError:  # no jars, or a cache that cannot be written
        return SHORT_JVM
    return f"{SHORT_JVM} {shlex.quote(f'-XX:ArchiveClassesAtExit={path}')} {_QUIET}"


def _major(java: str) -> int:
    """The Java's major version; 0 where its `release` file does not say.

    Raises:
        OSError: there is no such file.
    """
    release = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(java))), "release")
    with open(release, encoding="utf-8", errors="replace") as file:
        match = re.search(r'JAVA_VERSION="(\d+)', file.read())
    return int(match[1]) if match else 0


def _path(home: str, java: str) -> str:
    """The archive's path: it names the Spark, and the state of its jars and of the Java."""
    jars = os.path.join(home, "jars")
    state = [f"{os.path.realpath(java)} {os.stat(java).st_mtime_ns}"]
    for entry in sorted(os.scandir(jars), key=lambda entry: entry.name):
        state.append(f"{entry.name} {entry.stat().st_size} {entry.stat().st_mtime_ns}")
    names = (hashlib.sha256(text.encode()).hexdigest()[:12] for text in (home, "\n".join(state)))
    return os.path.join(cache_root(), "spark", f"classes-{'-'.join(names)}.jsa")


def _whole(path: str) -> bool:
    """Return True if a JVM has finished the file, whose first bytes it writes last."""
    try:
        with open(path, "rb") as file:
            return file.read(4).strip(b"\0") != b""
    except FileNotFoundError:
        return False
