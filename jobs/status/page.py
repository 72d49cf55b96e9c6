"""The job's page: status.json as HTML. Read-only, one file, no assets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Template


def page(status: dict[str, Any], curve: Sequence[tuple[int, float]], title: str) -> str:
    """The page of a job.

    Args:
        status: the contents of status.json.
        curve: pairs of (step, loss).
        title: the run's name.
    """
    step, total = status["step"], status["total_steps"]
    fraction = min(1.0, step / total) if step is not None and total else 0.0
    return _template().render(
        title=title,
        status=status,
        fraction=fraction,
        problem=_problem(status["error"]),
        curve=_curve(curve) if len(curve) > 1 else None,
    )


@cache
def _template() -> Template:
    """The template, made at the first request so that jinja2's import does not delay the start."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "or_dash": _or_dash,
        "milliseconds": _milliseconds,
        "duration": _duration,
        "utc": _utc,
    }
    source = files(__package__).joinpath("page.html.j2").read_text("utf-8")
    return environment.from_string(source)


def _problem(error: dict[str, Any] | None) -> str:
    """The error that ended the job, as lines; "" without an error."""
    if not error:
        return ""
    names = ("where", "expected", "got", "remedy")
    return "\n".join([error["what"], *(f"{n}: {error[n]}" for n in names if error.get(n))])


def _curve(curve: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """The curve's range, and its points in a field of 1000 by 200."""
    steps, losses = [point[0] for point in curve], [point[1] for point in curve]
    width = max(1, steps[-1] - steps[0])
    top, bottom = max(losses), min(losses)
    height = (top - bottom) or 1.0
    points = " ".join(
        f"{1000 * (step - steps[0]) / width:.1f},{200 - 200 * (loss - bottom) / height:.1f}"
        for step, loss in curve
    )
    ends = {"first": steps[0], "last": steps[-1]}
    return {"points": points, "top": top, "bottom": bottom, **ends}


def _or_dash(value: Any, form: str = "") -> str:
    return "-" if value is None else format(value, form)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f}"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
