"""Charts of the report as inline SVG, coloured by the page's style sheet: light, dark, on paper.

The page's script shows the values under the pointer (`data-lines`). The charts also work without
it, beside tables.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence

from howdah.core.terminal import shown

Line = tuple[str, Sequence[Sequence[float]]]
"""(name, [[x, y], ...])"""

_WIDTH, _HEIGHT = 460, 270
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 30, 40
COLOURS = 6


def escape(text: str) -> str:
    """Escape a text for SVG, with control characters made visible."""
    return html.escape(shown(text))


def _ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers from low to high."""
    if not high > low:
        return [low]
    raw = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(unit * times for times in (1, 2, 2.5, 5, 10) if unit * times >= raw)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _text(value: float) -> str:
    if value and (abs(value) < 1e-3 or abs(value) >= 1e5):
        return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:g}" if value != round(value) else f"{value:,.0f}"


class _Frame:
    """The axes of a chart: places of values, and the SVG of grid and labels."""

    def __init__(
        self, title: str, x: tuple[float, float], y: tuple[float, float], labels: tuple[str, str]
    ) -> None:
        self.title, self.labels = title, labels
        self.x = x if x[1] > x[0] else (x[0] - 0.5, x[0] + 0.5)
        self.y = y if y[1] > y[0] else (y[0] - 0.5, y[0] + 0.5)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a value in the picture."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        return round(_LEFT + across * wide, 1), round(_TOP + (1 - up) * high, 1)

    def svg(self, inside: str, data: str = "", legend: Sequence[str] = ()) -> str:
        """Return the whole chart, with its legend below."""
        inside += "".join(_key(number, name) for number, name in enumerate(legend))
        height = _HEIGHT + (18 * -(-len(legend) // 2) if legend else 0)
        parts = [f'<text class="title" x="{_LEFT}" y="16">{escape(self.title)}</text>']
        for value in _ticks(*self.y):
            across, up = self.at(self.x[0], value)
            parts.append(f'<path class="grid" d="M{across} {up}H{_WIDTH - _RIGHT}"/>')
            parts.append(f'<text class="tick" x="{across - 6}" y="{up + 4}" text-anchor="end">'
                         f"{_text(value)}</text>")  # fmt: skip
        for value in _ticks(*self.x):
            across, up = self.at(value, self.y[0])
            parts.append(f'<text class="tick" x="{across}" y="{up + 16}" text-anchor="middle">'
                         f"{_text(value)}</text>")  # fmt: skip
        left, bottom = self.at(self.x[0], self.y[0])
        parts.append(f'<path class="axis" d="M{left} {_TOP}V{bottom}H{_WIDTH - _RIGHT}"/>')
        for label, across, anchor in zip(
            self.labels, (_WIDTH - _RIGHT, _WIDTH - _RIGHT), ("end", "end"), strict=True
        ):
            down = _HEIGHT - 6 if label == self.labels[0] else 16
            parts.append(f'<text class="tick" x="{across}" y="{down}" text-anchor="{anchor}">'
                         f"{escape(label)}</text>")  # fmt: skip
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img"'
            f' aria-label="{escape(self.title)}" viewBox="0 0 {_WIDTH} {height}"{data}>'
            f"{''.join(parts)}{inside}</svg>"
        )


def lines(
    title: str,
    series: Sequence[Line],
    *,
    x_label: str = "step",
    y_label: str = "",
    x: tuple[float, float] | None = None,
    y: tuple[float, float] | None = None,
    marked: bool = False,
    diagonal: bool = False,
    smooth: bool = True,
) -> str:
    """Draw lines, with a legend if there are several.

    Args:
        x, y: the axes' ends; None: those of the values.
        marked: draw a dot at each value.
        diagonal: draw the line from corner to corner.
        smooth: join the values; False: draw only dots.
    """
    every = [point for _, points in series for point in points]
    if not every:
        return ""
    x = x or (min(p[0] for p in every), max(p[0] for p in every))
    if y is None:
        low, high = min(p[1] for p in every), max(p[1] for p in every)
        room = 0.06 * (high - low)
        y = (low - room if low - room > 0 or low < 0 else 0.0, high + room)
    frame = _Frame(title, x, y, (x_label, y_label))
    parts = []
    if diagonal:
        (x0, y0), (x1, y1) = frame.at(x[0], y[0]), frame.at(x[1], y[1])
        parts.append(f'<path class="diagonal" d="M{x0} {y0}L{x1} {y1}"/>')
    for number, (_, points) in enumerate(series):
        colour = number % COLOURS
        places = [frame.at(*point[:2]) for point in points]
        if smooth and len(places) > 1:
            path = "M" + "L".join(f"{across} {up}" for across, up in places)
            parts.append(f'<path class="line c{colour}" d="{path}"/>')
        if marked or not smooth or len(places) < 2:
            parts += [
                f'<circle class="dot c{colour}" cx="{across}" cy="{up}" r="3"/>'
                for across, up in places
            ]
    shown = [{"name": name, "points": [list(p[:2]) for p in points]} for name, points in series]
    box = [_LEFT, _RIGHT, _TOP, _BOTTOM, _WIDTH, _HEIGHT, *frame.x, *frame.y]
    value = json.dumps({"box": box, "x": x_label, "lines": shown}, separators=(",", ":"))
    legend = [name for name, _ in series] if len(series) > 1 else []
    return frame.svg("".join(parts), f' tabindex="0" data-lines="{escape(value)}"', legend)


def _key(number: int, name: str) -> str:
    """Return an entry of the legend."""
    short = name if len(name) <= 30 else name[:29] + "…"
    across, up = _LEFT + (number % 2) * 200, _HEIGHT + 10 + 18 * (number // 2)
    return (
        f'<rect class="fill c{number % COLOURS}" x="{across}" y="{up - 8}" width="9" height="9"/>'
        f'<text class="tick" x="{across + 14}" y="{up}">{escape(short)}</text>'
    )


def dots(title: str, points: Sequence[Sequence[float]], *, x_label: str, y_label: str) -> str:
    """Draw points, and the diagonal on which they should lie."""
    every = [value for point in points for value in point]
    ends = (min(every), max(every))
    return lines(
        title, [("rows", points)], x_label=x_label, y_label=y_label, x=ends, y=ends, smooth=False,
        diagonal=True,
    )  # fmt: skip


def bars(title: str, counts: Sequence[int], edges: Sequence[float], *, x_label: str) -> str:
    """Draw a histogram."""
    frame = _Frame(title, (edges[0], edges[-1]), (0.0, float(max(counts))), (x_label, "rows"))
    parts = []
    for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
        (x0, top), (x1, bottom) = frame.at(low, count), frame.at(high, 0.0)
        parts.append(
            f'<rect class="fill c0" x="{x0}" y="{top}" width="{max(1.0, x1 - x0 - 1):.1f}"'
            f' height="{bottom - top:.1f}">'
            f"<title>{low:g} to {high:g}: {count:,} rows</title></rect>"
        )
    return frame.svg("".join(parts))


def ruler(value: float, interval: tuple[float, float] | None, marks: Sequence[tuple]) -> str:
    """Draw a figure with its interval, and what it is compared with, on one scale.

    Args:
        marks: (name, value) of each comparison.
    """
    low, high = interval or (value, value)
    # A distant mark would leave no room for the rest, so it is at the edge, with an arrow.
    span = max(high - low, 1e-6 + 0.01 * abs(value))
    near = [mark for _, mark in marks if low - 4 * span <= mark <= high + 4 * span]
    first, last = min([low, *near]) - 0.2 * span, max([high, *near]) + 0.2 * span

    def at(figure: float) -> float:
        place = 8 + (min(max(figure, first), last) - first) / (last - first) * 444
        return round(place, 1)

    height = 30 + 26 * len(marks)
    parts = [
        f'<rect class="band" x="{at(low)}" y="4" width="{max(2.0, at(high) - at(low)):.1f}"'
        f' height="{height - 8}"/>',
        f'<path class="line c0" d="M{at(value)} 4V{height - 4}"/>',
        f'<circle class="dot c0" cx="{at(value)}" cy="16" r="6"/>',
    ]
    for number, (name, mark) in enumerate(marks):
        up, right = 42 + 26 * number, at(mark) > 230
        if first <= mark <= last:
            parts.append(f'<circle class="dot other" cx="{at(mark)}" cy="{up - 4}" r="4"/>')
        else:
            tip, back = (2, 12) if mark < first else (458, 448)
            arrow = f"M{tip} {up - 4}L{back} {up - 9}V{up + 1}Z"
            parts.append(f'<path class="dot other" d="{arrow}"/>')
        parts.append(
            f'<text class="mark" x="{at(mark) + (-9 if right else 9)}" y="{up}"'
            f' text-anchor="{"end" if right else "start"}">{escape(name)} {mark:.4f}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ruler" role="img" aria-label='
        f'"the figure, its interval and what it is compared with" viewBox="0 0 460 {height}">'
        f"{''.join(parts)}</svg>"
    )
