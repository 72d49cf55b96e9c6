"""Prints the entries of a lock file, with their hashes, that an image needs.

    pip install --dry-run --report resolved.json -c constraints.txt '.[torch,serve]'
    python image_lock.py requirements.lock resolved.json setuptools > image.lock
    pip install --no-deps --require-hashes -r image.lock

requirements.lock is one for everything that the repository does; pip's strict mode would install
all of it. The standard library alone is used: nothing is installed when this runs.
"""

import json
import re
import sys


def entries(lock: str) -> dict[str, str]:
    """{normalised name: its lines} of a lock file as `pip-compile --generate-hashes` writes it."""
    blocks = {}
    for entry in re.split(r"\n(?=[A-Za-z0-9])", "\n" + lock):
        name = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)==", entry.strip())
        if name is not None:
            blocks[normalised(name[1])] = entry.strip()
    return blocks


def normalised(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def needed(report: dict) -> set[str]:
    """Names of what pip would install, but for the project itself, which is a directory."""
    return {
        normalised(item["metadata"]["name"])
        for item in report["install"]
        if "dir_info" not in item["download_info"]
    }


def chosen(lock: str, names: set[str]) -> str:
    """The lines of those names.

    Raises:
        SystemExit: the lock file lacks one, or has it without a hash.
    """
    locked = entries(lock)
    lacking = sorted(n for n in names if "--hash=sha256:" not in locked.get(n, ""))
    if lacking:
        raise SystemExit(f"the lock file has no hash of {', '.join(lacking)}")
    return "".join(locked[name] + "\n" for name in sorted(names))


def main(lock_file: str, report_file: str, *more: str) -> None:
    """Write the entries to standard output; `more` are names beside those of the report."""
    with open(lock_file) as lock, open(report_file) as report:
        names = needed(json.load(report)) | set(map(normalised, more))
        sys.stdout.write(chosen(lock.read(), names))


if __name__ == "__main__":
    main(*sys.argv[1:])
