"""Class data sharing: Hadoop's classes are parsed once and mapped by every later JVM.

A daemon or a client spends half of its start on loading classes. Java makes an archive (JEP 310) of
the classes that the daemons of a first start have loaded, and it is kept beside the jars. It is
valid for one Java and one path of the jars; any other JVM ignores it.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tools.minicluster.plan import Plan
from tools.minicluster.settings import base_class_path, java_flags

DUMP_LIMIT = 300.0  # seconds


def archive(plan: Plan) -> Path:
    """Path of the archive for this Java and these jars; it may not exist yet."""
    release = Path(plan.java_home, "release")
    version = release.read_bytes() if release.exists() else b""
    key = hashlib.sha256(version + plan.java_home.encode()).hexdigest()[:12]
    return Path(plan.jars, f"classes-{key}.jsa")


def flags(plan: Plan, listing: str | None = None) -> list[str]:
    """Flags that use the archive, or, without one, list the classes that a daemon loads."""
    path = archive(plan)
    if path.exists():
        return [f"-XX:SharedArchiveFile={path}"]
    return [f"-XX:DumpLoadedClassList={_lists(plan) / listing}"] if listing else []


def _lists(plan: Plan) -> Path:
    directory = plan.path("tmp", "classes")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def make(plan: Plan, say: Callable[[str], None]) -> None:
    """Make the archive from the lists of the running daemons, to save time at later starts."""
    target = archive(plan)
    if target.exists():
        return
    say("preparing Hadoop's classes for faster starts (once)")
    # Keep the order of loading, since lambdas come after their class.
    classes: dict[str, None] = {}
    for path in sorted(_lists(plan).iterdir()):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        for line in lines[:-1]:  # a running JVM may have written half of the last line
            # Classes of other loaders have numbers, which are valid only in their JVM's list.
            if line and not line.startswith("#") and " id: " not in line:
                classes[line] = None
    with tempfile.TemporaryDirectory(dir=plan.jars, prefix=".classes-") as directory:
        listed, made = Path(directory, "list"), Path(directory, target.name)
        listed.write_text("\n".join(classes) + "\n", encoding="utf-8")
        done = subprocess.run(
            [
                f"{plan.java_home}/bin/java",
                *java_flags(plan),
                "-Xshare:dump",
                f"-XX:SharedClassListFile={listed}",
                f"-XX:SharedArchiveFile={made}",
                "-cp",
                base_class_path(plan),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=DUMP_LIMIT,
        )
        if done.returncode == 0 and made.exists():
            made.replace(target)
        else:
            output = (done.stderr or done.stdout).strip().splitlines()[-1:]
            say(f"  that failed, starts stay slower: {''.join(output) or done.returncode}")
