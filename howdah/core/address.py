"""How a version of a published model is spelt. Pure: the Airflow provider reads it, too."""

from __future__ import annotations

import re

_NUMBERED = re.compile(r"(.+?)/*(?:@|/v=)([1-9][0-9]*)")


def split_address(address: str) -> tuple[str, int | None]:
    """(model, number) of NAME@3 and NAME/v=3, where NAME may be a path; (address, None) of others.

    >>> split_address("news@3"), split_address("hdfs://nn/models/news/v=3/")
    (('news', 3), ('hdfs://nn/models/news', 3))
    >>> split_address("models/news/")
    ('models/news', None)
    """
    path = address.rstrip("/") or address
    numbered = _NUMBERED.fullmatch(path)
    return (numbered[1], int(numbered[2])) if numbered else (path, None)
