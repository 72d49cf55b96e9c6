"""Secrets that a test plants, and the places of a mini cluster where others may look for them."""

import contextlib
import os
import stat
import threading
from pathlib import Path

from howdah import storage

MARK = "Planted7hunter2"
"""In every planted value."""
SPARK_CONF = {
    "spark.hadoop.fs.s3a.access.key": f"AKIA{MARK}",
    "spark.hadoop.fs.s3a.secret.key": f"{MARK}/s3+key=",
    "spark.hadoop.fs.azure.account.key.me.dfs.core.windows.net": f"{MARK}Azure==",
    "spark.howdah.jdbc": f"jdbc:postgresql://db:5432/x?user=u&password={MARK}",
}
SCRIPTS = ("launch_container.sh", "default_container_executor.sh", ".skein.sh", "prelaunch.out")


class ArgumentLists:
    """Looks, as long as its context lasts, at the argument lists of all processes: as `ps` shows
    them to every user. `.found` are those with a planted secret."""

    def __init__(self):
        self.found, self.seen = set(), 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="argument-lists", daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _look(self):
        while True:
            for name in filter(str.isdigit, os.listdir("/proc")):
                with contextlib.suppress(OSError):
                    words = Path(f"/proc/{name}/cmdline").read_bytes()
                    self.seen += 1
                    if MARK.encode() in words:
                        self.found.add(words.replace(b"\0", b" ").decode(errors="replace"))
            if self._over.wait(0.1):
                return


def container_files(cluster, application):
    """Files that the NodeManagers have of an application's containers, logs included."""
    for folder, _, names in os.walk(cluster.directory):
        parts = folder.split(os.sep)
        if application in parts or "nmPrivate" in parts:
            for name in names:
                yield Path(folder, name)


def holds_secret(path):
    """Whether a file holds a planted secret; one that is gone by now does not."""
    try:
        return MARK.encode() in path.read_bytes()
    except OSError:
        return False


def open_to_others(path, top):
    """Whether a user of this machine who is neither owner nor of the group reads a file, if he
    comes as far as `top`."""
    place = Path(path)
    if not place.stat().st_mode & stat.S_IROTH:
        return False
    above = [p for p in place.parents if Path(top) in (p, *p.parents) and p != Path(top)]
    return all(p.stat().st_mode & stat.S_IXOTH for p in above)


def remote_files(directory):
    """Every file below a directory of HDFS: [(entry, whether others may come to it)]."""
    files, places = [], [(directory, True)]
    while places:
        place, reachable = places.pop()
        here = storage.entry(place)
        reachable = reachable and bool(here.mode & stat.S_IXOTH)
        for entry in storage.list_dir(place, unfinished=True):
            if entry.is_dir:
                places.append((entry.path, reachable))
            else:
                files.append((entry, reachable and bool(entry.mode & stat.S_IROTH)))
    return files
