"""Versions of the software of clusters that Howdah was tried with, for the doctor and the docs.

A Hadoop is listed here once all of tests/hadoop/test_versions.py passes on it (`make test-all`), on
the mini cluster, which can start more of them. That file also compares the table in
docs/operations.md with this one.
"""

from __future__ import annotations

from collections.abc import Mapping

TRIED: Mapping[str, Mapping[str, str]] = {
    "Hadoop": dict.fromkeys(("3.1.4", "3.2.4", "3.3.6", "3.4.1", "3.5.0"), "2026-11"),
    "Hive metastore": {"2.3.10": "2026-11", "3.1.3": "2026-11"},
    "Spark": {"3.4.4": "2026-11", "3.5.9": "2026-11", "4.2.1": "2026-11"},
    "transformers": {"4.57.6": "2026-11", "5.24.0": "2026-11"},
}
"""{software: {version: month of the trial}}"""


def remark(software: str, version: str) -> str:
    """A version with what is known of it, for the doctor; a distribution's suffix is left out.

    >>> remark("Hadoop", "3.3.6-amzn-1")
    'Hadoop 3.3.6-amzn-1 (tested 2026-11)'
    >>> remark("Hadoop", "3.1.1.7.1.7.0-551")
    'Hadoop 3.1.1.7.1.7.0-551 (not tested; tested versions: 3.1.4, 3.2.4, 3.3.6, 3.4.1, 3.5.0)'
    """
    plain = ".".join(version.split("-")[0].split(".")[:3])
    month = TRIED[software].get(plain)
    tested = ", ".join(TRIED[software])
    judged = f"tested {month}" if month else f"not tested; tested versions: {tested}"
    return f"{software} {version} ({judged})"
