"""Numbers, sizes and times as a page shows them: with the digits that tell something."""

from __future__ import annotations

import datetime
import math
from typing import Any

DASH = "–"
"""Stands for a value that was not measured."""


def number(value: float | None) -> str:
    """Format a number: counts in full, figures with about four digits that tell something.

    >>> number(1234567), number(0.25), number(2.9870392126444898e-05), number(None)
    ('1,234,567', '0.2500', '2.987e-05', '–')
    >>> number(41.2345), number(432.1), number(98765.4), number(0.0), number(float("nan"))
    ('41.23', '432.1', '98,765', '0.0000', '–')
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return DASH
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if math.isinf(size) or 0 < size < 1e-3:
        return f"{value:.4g}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{4 if size < 10 else 2 if size < 100 else 1}f}"


def percent(share: float | None) -> str:
    """Format a share.

    >>> percent(0.4047), percent(0.00004), percent(0.0), percent(None)
    ('40.5 %', '0.004 %', '0.0 %', '–')
    """
    if share is None:
        return DASH
    return f"{100 * share:.1g} %" if 0 < abs(share) < 5e-4 else f"{100 * share:.1f} %"


def size(count: int | None) -> str:
    """Format a number of bytes.

    >>> size(900), size(1_500_000), size(None)
    ('900 B', '1.4 MiB', '–')
    """
    if count is None:
        return DASH
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def duration(seconds: float | None) -> str:
    """Format a length of time.

    >>> duration(0.003), duration(0.25), duration(59), duration(7_500), duration(198_000)
    ('0 s', '0.2 s', '59 s', '2 h 5 min', '2 d 7 h')
    """
    if seconds is None:
        return DASH
    if seconds < 10:
        return f"{round(seconds, 1):g} s"
    whole = round(seconds)
    for large, small, parts, unit, rest in (
        (86_400, 3_600, 24, "d", "h"), (3_600, 60, 60, "h", "min"), (60, 1, 60, "min", "s"),
    ):  # fmt: skip
        if whole >= large:
            return f"{whole // large} {unit} {whole % large // small % parts} {rest}"
    return f"{whole} s"


def milliseconds(seconds: float | None) -> str:
    """Format a short time, such as a latency.

    >>> milliseconds(0.00512), milliseconds(1.25), milliseconds(None)
    ('5.1 ms', '1,250 ms', '–')
    """
    if seconds is None:
        return DASH
    return f"{1000 * seconds:,.{0 if seconds >= 0.01 else 1}f} ms"


def moment(value: str | float | None) -> Any:
    """Return a `<time>` element: UTC to the minute, which the script shows in the reader's clock.

    Args:
        value: ISO 8601, or seconds since 1970; text that is neither is shown as it is.

    >>> str(moment("2026-11-28T14:52:13.123456+00:00"))
    '<time datetime="2026-11-28T14:52:13Z">2026-11-28 14:52 UTC</time>'
    """
    from markupsafe import Markup

    if value in (None, ""):
        return DASH
    try:
        if isinstance(value, str):
            at = datetime.datetime.fromisoformat(value)
            at = at if at.tzinfo else at.replace(tzinfo=datetime.UTC)
        else:
            at = datetime.datetime.fromtimestamp(float(value), datetime.UTC)
        at = at.astimezone(datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return str(value)
    return Markup('<time datetime="{}">{} UTC</time>').format(
        f"{at:%Y-%m-%dT%H:%M:%SZ}", f"{at:%Y-%m-%d %H:%M}"
    )
