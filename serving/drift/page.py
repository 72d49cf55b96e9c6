"""drift.html: the verdict first, then each column over the last partitions with its limit.

One file without scripts that loads nothing; light or dark as the reader's system is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from howdah import storage
from howdah.serving.drift.findings import Findings
from howdah.serving.drift.judge import COLUMNS, QUANTILE

_WIDTH, _HEIGHT = 560.0, 150.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 46.0, 8.0, 8.0, 22.0


def write(
    findings: Findings, directory: str, words: dict[int, str] | None = None
) -> dict[str, str]:
    """Write drift.html and drift.json into a directory; return their paths.

    Args:
        words: texts of tokens by their number; others are shown as numbers.
    """
    paths = {name: storage.join(directory, f"drift.{name}") for name in ("html", "json")}
    text = json.dumps(findings.as_dict(), indent=1, ensure_ascii=False) + "\n"
    storage.make_dirs(directory)
    storage.write_whole(paths["html"], render(findings, words or {}).encode("utf-8", "replace"))
    storage.write_whole(paths["json"], text.encode("utf-8", "replace"))
    return paths


def render(findings: Findings, words: Mapping[int, str]) -> str:
    """Render the page."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("howdah.serving.drift", "."),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["number"] = lambda v: "–" if v is None else f"{v:.4f}"
    environment.filters["share"] = lambda v: f"{100 * v:.2f} %"
    verdict = findings.verdict
    histograms = {name: findings.histogram(name) for name in ("confidence", "length")}
    shares = [share for rows in histograms.values() for _, *pair in rows for share in pair]
    return environment.get_template("drift.html.j2").render(
        findings=findings,
        verdict=verdict,
        titles={
            "alarm": "Alarm: the rows have drifted",
            "ok": "No drift",
            "too few rows": "Too few rows to judge",
            "not measured": "Not measured",
        },
        what=COLUMNS,
        quantile=QUANTILE,
        plots=[plot for name in COLUMNS if (plot := _plot(findings, name)) is not None],
        labels=findings.labels(),
        histograms=histograms,
        tokens=[
            (words.get(number, f"#{number}"), old, new) for number, old, new in findings.tokens()
        ],
        widest=max(shares, default=1.0),
    )


def _plot(findings: Findings, name: str) -> dict[str, Any] | None:
    """Draw a column over the partitions; None: fewer than two have a value."""
    columns = [point.verdict.column(name) for point in findings.points]
    if sum(column.value is not None for column in columns) < 2:
        return None
    return {
        "name": name,
        "svg": lines(
            [point.name for point in findings.points],
            [column.value for column in columns],
            [column.limit for column in columns],
            [column.state == "alarm" for column in columns],
            below=name in ("estimated_accuracy", "accuracy"),
        ),
    }


def lines(
    names: Sequence[str],
    values: Sequence[float | None],
    limits: Sequence[float | None],
    alarms: Sequence[bool],
    *,
    below: bool,
) -> Any:
    """Draw values over partitions as SVG; the band of alarms is shaded.

    Args:
        below: the alarm is below the limit.
    """
    from markupsafe import Markup, escape

    numbers = [value for value in (*values, *limits) if value is not None]
    low, high = (min(numbers), max(numbers)) if below else (0.0, max(numbers))
    margin = (high - low) * 0.08 or 0.05
    low, high = (low - margin if below else 0.0), high + margin
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(names) - 1)

    def x(number: int) -> float:
        return _LEFT + number * step

    def y(value: float) -> float:
        return _TOP + (high - value) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    edge = y(low) if below else y(high)
    parts = []
    for number, limit in enumerate(limits):
        if limit is not None:
            left, right = (
                max(_LEFT, x(number) - step / 2),
                min(_WIDTH - _RIGHT, x(number) + step / 2),
            )
            top, bottom = sorted((y(limit), edge))
            parts.append(
                f'<rect class="band" x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}"'
                f' height="{bottom - top:.1f}"/>'
            )
    for value in (low, (low + high) / 2, high):
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(value):.1f}"'
            f' y2="{y(value):.1f}"/><text x="{_LEFT - 5}" y="{y(value) + 3.5:.1f}"'
            f' text-anchor="end">{value:.3g}</text>'
        )
    for run in _runs(values):
        points = " ".join(f"{x(n):.1f},{y(values[n]):.1f}" for n in run)
        parts.append(f'<polyline class="line" points="{points}"/>')
    for number, value in enumerate(values):
        if value is None:
            continue
        title = f"{names[number]}: {value:.4f}"
        if limits[number] is not None:
            title += f", limit {limits[number]:.4f}"
        kind = "dot alarm" if alarms[number] else "dot"
        parts.append(
            f'<circle class="{kind}" cx="{x(number):.1f}" cy="{y(value):.1f}"'
            f' r="{4 if alarms[number] else 2.6}"><title>{escape(title)}</title></circle>'
        )
    for number, anchor in ((0, "start"), (len(names) - 1, "end")):
        parts.append(
            f'<text x="{x(number):.1f}" y="{_HEIGHT - 6}" text-anchor="{anchor}">'
            f"{escape(names[number])}</text>"
        )
    return Markup(  # numbers, and texts that are escaped above
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="img">{"".join(parts)}</svg>'
    )


def _runs(values: Sequence[float | None]) -> list[list[int]]:
    """Group the indexes of neighbouring values; None is a gap.

    >>> _runs([1.0, None, 2.0, 3.0])
    [[0], [2, 3]]
    """
    runs: list[list[int]] = [[]]
    for number, value in enumerate(values):
        if value is None:
            runs.append([])
        else:
            runs[-1].append(number)
    return [run for run in runs if run]
