"""Charts as inline SVG, coloured by the pages' style sheet: light, dark, on paper.

The pages' script shows the values under the pointer (`data-lines`). The charts also work without
it, beside tables.
"""

from __future__ import annotations

import html
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from howdah.core.terminal import shown

Line = tuple[str, Sequence[Sequence[float | None]]]
"""(name, [[x, y], ...]); y is None where the line has a gap."""

COLOURS = 6
"""Number of colours; further series have the same colours and are dashed."""

_WIDTH, _HEIGHT = 400, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 14, 40, 42


def escape(text: str) -> str:
    """Escape a text for SVG, with control characters made visible."""
    return html.escape(shown(text))


@dataclass(frozen=True)
class Axis:
    """An axis: its ends, its ticks, and where a value lies between the ends."""

    label: str = ""
    ends: tuple[float, float] = (0.0, 1.0)
    log: bool = False
    names: Sequence[str] = ()
    """Names of the values 0, 1, ... of an axis of choices."""
    whole: bool = False
    """The values are whole numbers, such as steps or trials."""

    @classmethod
    def of(
        cls,
        values: Sequence[float],
        label: str = "",
        *,
        room: float = 0.0,
        log: bool = False,
        whole: bool = False,
    ) -> Axis:
        """Return the axis on which values lie, with room at its ends as a part of its length."""
        low, high = min(values), max(values)
        if log and low > 0:
            factor = (high / low) ** room
            return cls(label, (low / factor, high * factor), True)
        space = room * (high - low)
        # Room does not lead an axis below zero, nor one of shares beyond one.
        top = 1.0 if high <= 1.0 < high + space else high + space
        ends = (low - space if low - space > 0 or low < 0 else 0.0, top)
        return cls(label, ends, whole=whole)

    @classmethod
    def choices(cls, names: Sequence[str], label: str = "") -> Axis:
        """Return an axis of names; a value is the number of its name."""
        return cls(label, (-0.5, len(names) - 0.5), names=tuple(names))

    def part(self, value: float) -> float:
        """Return the place of a value as a part of the axis."""
        low, high = self.ends
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return (value - low) / (high - low) if high > low else 0.5

    def ticks(self) -> list[tuple[float, str]]:
        """Return (value, text) of round numbers, or of names, along the axis."""
        low, high = self.ends
        if self.names:
            every = -(-len(self.names) // 8)
            longest = max(3, 52 // -(-len(self.names) // every))
            named = list(enumerate(self.names))[::every]
            return [(n, cut(name, longest)) for n, name in named]
        if not high > low:
            return [(low, _tick(low))]
        if self.log:
            first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
            times = (1, 2, 5) if last - first <= 2 else (1,)
            rounds = [n * 10.0**power for power in range(first, last + 1) for n in times]
            inside = [value for value in rounds if low <= value <= high]
            return [(value, _tick(value)) for value in inside[:: max(1, len(inside) // 6)]]
        raw = (high - low) / 5  # at most five steps
        unit = 10.0 ** math.floor(math.log10(raw))
        step = next(unit * n for n in (1, 2, 2.5, 5, 10) if unit * n >= raw * (1 - 1e-9))
        step = max(1.0, round(step)) if self.whole else step
        begin = math.ceil(low / step - 1e-9)
        values = [n * step for n in range(begin, math.floor(high / step + 1e-9) + 1)]
        return [(value, _tick(value)) for value in values]


class Frame:
    """A chart's title and axes; gives the places of values to what is drawn inside."""

    def __init__(self, title: str, x: Axis, y: Axis) -> None:
        self.title, self.x, self.y = title, x, y

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return the place of a value in the picture."""
        wide, high = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
        across, up = _LEFT + self.x.part(x) * wide, _TOP + (1 - self.y.part(y)) * high
        return round(across, 1), round(up, 1)

    def rect(self, x: tuple[float, float], y: tuple[float, float], kind: str, tip: str = "") -> str:
        """Draw an area between values, with a text that shows under the pointer."""
        (x0, y0), (x1, y1) = self.at(x[0], y[0]), self.at(x[1], y[1])
        title = f"<title>{escape(tip)}</title>" if tip else ""
        return (
            f'<rect class="{kind}" x="{min(x0, x1)}" y="{min(y0, y1)}" width='
            f'"{max(1.0, abs(x1 - x0) - 0.6):.1f}" height="{abs(y1 - y0):.1f}">{title}</rect>'
        )

    def dot(self, x: float, y: float, kind: str, tip: str = "", radius: float = 3) -> str:
        """Draw a dot, with a text that shows under the pointer."""
        across, up = self.at(x, y)
        title = f"<title>{escape(tip)}</title>" if tip else ""
        return f'<circle class="dot {kind}" cx="{across}" cy="{up}" r="{radius}">{title}</circle>'

    def path(self, points: Sequence[Sequence[float]], kind: str) -> str:
        """Draw a line through points."""
        places = "L".join("{} {}".format(*self.at(*point[:2])) for point in points)
        return f'<path class="{kind}" d="M{places}"/>'

    def svg(self, inside: str, data: str = "", legend: Sequence[tuple[str, str]] = ()) -> Any:
        """Return the whole chart, as markup.

        Args:
            legend: (class of the colour, name) of each series, shown below.
        """
        from markupsafe import Markup

        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        parts = [f'<text class="title" x="0" y="13">{escape(self.title)}</text>']
        for value, text in self.y.ticks():
            up = self.at(self.x.ends[0], value)[1]
            parts.append(f'<path class="grid" d="M{_LEFT} {up}H{right}"/>')
            parts.append(f'<text x="{_LEFT - 5}" y="{up + 4}" text-anchor="end">{text}</text>')
        for value, text in self.x.ticks():
            across = self.at(value, self.y.ends[0])[0]
            parts.append(f'<path class="axis" d="M{across} {bottom}v4"/>')
            near = "end" if across > right - 12 and len(text) > 4 else "middle"
            place = right if near == "end" else across
            parts.append(
                f'<text x="{place}" y="{bottom + 16}" text-anchor="{near}">{escape(text)}</text>'
            )
        parts.append(f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>')
        parts.append(f'<text x="0" y="{_TOP - 10}">{escape(self.y.label)}</text>')
        parts.append(
            f'<text x="{right}" y="{_HEIGHT - 9}" text-anchor="end">{escape(self.x.label)}</text>'
        )
        height = _HEIGHT + 18 * -(-len(legend) // 2)
        parts += [_key(number, *each) for number, each in enumerate(legend)]
        return Markup(  # numbers, and texts that are escaped above
            f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" role="img"'
            f' aria-label="{escape(self.title)}" viewBox="0 0 {_WIDTH} {height}"{data}>'
            f"{''.join(parts)}{inside}</svg>"
        )


def colour(number: int) -> str:
    """Return the classes of a series' colour."""
    return f"c{number % COLOURS}" + (" dashed" if number >= COLOURS else "")


def lines(
    title: str,
    series: Sequence[Line],
    *,
    x_label: str = "step",
    y_label: str = "",
    x: Axis | None = None,
    y: tuple[float, float] | None = None,
    marked: bool = False,
    diagonal: bool = False,
    smooth: bool = True,
    shaded: Sequence[tuple[tuple[float, float], tuple[float, float]]] = (),
) -> Any:
    """Draw lines, with a legend if there are several; "" without a value.

    Args:
        x: the axis; None: one from the least to the greatest value.
        y: the axis' ends; None: those of the values, with some room.
        marked: draw a dot at each value.
        diagonal: draw the line from corner to corner.
        smooth: join the values; False: draw only dots.
        shaded: areas of an alarm, as ((x, x), (y, y)).
    """
    every = [point for _, points in series for point in points if point[1] is not None]
    if not every:
        return ""
    across = x or Axis.of([p[0] for p in every], x_label, whole=x_label == "step")
    up = Axis(y_label, y) if y else Axis.of([p[1] for p in every], y_label, room=0.06)
    frame = Frame(title, _open(across), _open(up))
    parts = [frame.rect(*area, "alarm") for area in shaded]
    if diagonal:
        ends = frame.x.ends, frame.y.ends
        low, high = max(end[0] for end in ends), min(end[1] for end in ends)
        parts.append(frame.path([(low, low), (high, high)], "diagonal"))
    for number, (_, points) in enumerate(series):
        for run in _unbroken(points):
            if smooth and len(run) > 1:
                parts.append(frame.path(run, f"line {colour(number)}"))
            if marked or not smooth or len(run) < 2:
                parts += [frame.dot(*point[:2], colour(number)) for point in run]
    drawn = [
        {"name": name, "points": [list(p[:2]) for p in points if p[1] is not None]}
        for name, points in series
    ]
    box = [_LEFT, _RIGHT, _TOP, _BOTTOM, _WIDTH, _HEIGHT, *frame.x.ends]
    value = {"box": box, "x": frame.x.label, "names": frame.x.names, "lines": drawn}
    text = escape(json.dumps(value | {"log": frame.x.log}, separators=(",", ":")))
    legend = [(colour(n), name) for n, (name, _) in enumerate(series)] if len(series) > 1 else []
    return frame.svg("".join(parts), f' tabindex="0" data-lines="{text}"', legend)


def dots(title: str, points: Sequence[Sequence[float]], *, x_label: str, y_label: str) -> Any:
    """Draw points, and the diagonal on which they should lie."""
    every = [value for point in points for value in point]
    ends = (min(every), max(every))
    return lines(
        title, [("rows", points)], x=Axis(x_label, ends), y_label=y_label, y=ends, smooth=False,
        diagonal=True,
    )  # fmt: skip


def histogram(title: str, counts: Sequence[int], edges: Sequence[float], *, x_label: str) -> Any:
    """Draw how many rows lie between each two edges."""
    top = float(max(counts, default=0)) or 1.0
    frame = Frame(title, Axis(x_label, (edges[0], edges[-1])), Axis("rows", (0.0, 1.02 * top)))
    bars = [
        frame.rect((low, high), (0.0, count), "c0", f"{low:g} to {high:g}: {count:,} rows")
        for (low, high), count in zip(itertools.pairwise(edges), counts, strict=True)
    ]
    return frame.svg("".join(bars))


def ruler(
    name: str,
    value: float,
    interval: tuple[float, float] | None,
    marks: Sequence[tuple[str, float]],
) -> Any:
    """Draw a figure with its interval, and below it what it is compared with, on one scale.

    Args:
        marks: (name, value) of each comparison.
    """
    from markupsafe import Markup

    ends = (*(interval or ()), value, *(mark for _, mark in marks))
    low, high = min(ends), max(ends)
    room = 0.06 * (high - low) or 0.05 * abs(value) or 0.05
    axis = Axis(ends=(low - room, high + room))
    bottom = 8 + 34 * (len(marks) + 1)

    def at(figure: float) -> float:
        return round(8 + axis.part(figure) * (_WIDTH - 16), 1)

    parts = []
    for figure, text in axis.ticks():
        parts.append(f'<path class="grid" d="M{at(figure)} 4V{bottom}"/>')
        near = "start" if at(figure) < 20 else "end" if at(figure) > _WIDTH - 20 else "middle"
        parts.append(f'<text x="{at(figure)}" y="{bottom + 14}" text-anchor="{near}">{text}</text>')
    parts.append(f'<path class="axis" d="M4 {bottom}H{_WIDTH - 4}"/>')
    if interval:
        left, right = at(interval[0]), at(interval[1])
        parts.append(
            f'<rect class="band" x="{left}" y="4" width="{max(2.0, right - left):.1f}"'
            f' height="{bottom - 4}"/>'
        )
    for number, (text, figure) in enumerate([(name, value), *marks]):
        up, kind = 18 + 34 * number, "c0" if number == 0 else "other"
        parts.append(f'<text class="mark" x="4" y="{up}">{escape(text)} {figure:.4f}</text>')
        parts.append(
            f'<circle class="dot {kind}" cx="{at(figure)}" cy="{up + 11}" r="{5 - bool(number)}"/>'
        )
    return Markup(  # numbers, and texts that are escaped above
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ruler" role="img" aria-label='
        f'"the figure, its interval and what it is compared with" viewBox="0 0 {_WIDTH}'
        f' {bottom + 20}">{"".join(parts)}</svg>'
    )


def cut(text: str, longest: int = 30) -> str:
    """Shorten a text.

    >>> cut("training.learning_rate", 10)
    'training.…'
    """
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _open(axis: Axis) -> Axis:
    """Return the axis; one whose ends are the same value gets a length."""
    low, high = axis.ends
    if high > low:
        return axis
    return Axis(axis.label, (low / 2, low * 2) if axis.log else (low - 0.5, low + 0.5), axis.log)


def _unbroken(points: Sequence[Sequence[float | None]]) -> list[list[Any]]:
    """Group neighbouring points; a value of None is a gap.

    >>> _unbroken([[0, 1.0], [1, None], [2, 2.0], [3, 3.0]])
    [[[0, 1.0]], [[2, 2.0], [3, 3.0]]]
    """
    groups: list[list[Any]] = [[]]
    for point in points:
        if point[1] is None:
            groups.append([])
        else:
            groups[-1].append(point)
    return [group for group in groups if group]


def _key(number: int, kind: str, name: str) -> str:
    """Return an entry of the legend."""
    across, up = 4 + (number % 2) * 200, _HEIGHT + 10 + 18 * (number // 2)
    sign = (
        f'<path class="line {kind}" d="M{across} {up - 4}h14"/>'
        if "dashed" in kind
        else f'<rect class="{kind}" x="{across + 2}" y="{up - 8}" width="9" height="9"/>'
    )
    return f'{sign}<text x="{across + 18}" y="{up}">{escape(cut(name))}</text>'


def _tick(value: float) -> str:
    if value and (abs(value) < 1e-3 or abs(value) >= 1e5):
        return f"{value:.3g}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:g}" if value != round(value) else f"{value:,.0f}"
