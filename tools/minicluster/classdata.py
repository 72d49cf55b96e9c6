"""Class data sharing: Hadoop's classes parsed once, mapped by every JVM after that.

A daemon or a client spends half of its start on loading classes. From a list of those that the
daemons of a first start have loaded, Java makes an archive (JEP 310), which is kept beside the
jars. It holds for one Java and one place of the jars; a JVM for which it does not hold, ignores it.
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
    """Where the archive for this Java and these jars is, or would be."""
    release = Path(plan.java_home, "release")
    known = release.read_bytes() if release.exists() else b""
    key = hashlib.sha256(known + plan.java_home.encode()).hexdigest()[:12]
    return Path(plan.jars, f"classes-{key}.jsa")


def flags(plan: Plan, listing: str | None = None) -> list[str]:
    """Use the archive; where there is none, list the loaded classes under a daemon's name."""
    path = archive(plan)
    if path.exists():
        return [f"-XX:SharedArchiveFile={path}"]
    return [f"-XX:DumpLoadedClassList={_lists(plan) / listing}"] if listing else []


def _lists(plan: Plan) -> Path:
    directory = plan.path("tmp", "classes")
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def make(plan: Plan, say: Callable[[str], None]) -> None:
    """Make the archive from what the daemons that run have listed; it only saves time."""
    target = archive(plan)
    if target.exists():
        return
    say("preparing Hadoop's classes for faster starts (once)")
    # In the order of loading, as lambdas come after their class.
    classes: dict[str, None] = {}
    for path in sorted(_lists(plan).iterdir()):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        for line in lines[:-1]:  # the last one may be half of what a running JVM writes
            # Classes of other loaders have numbers, which hold only in their JVM's list.
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
