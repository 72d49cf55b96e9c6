"""The job's page: what status.json says, for people's eyes. Read-only, one file, no assets."""

from __future__ import annotations

import html
import time
from collections.abc import Sequence
from typing import Any

__all__ = ["page"]

_REFRESH_SECONDS = 5
_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 62em; padding: 0 1em;
       color: #1c2430; background: #fff }
h1 { font-size: 1.3em; margin-bottom: 0 } h2 { font-size: 1.05em; margin: 1.6em 0 .4em }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .25em .7em .25em 0; border-bottom: 1px solid #e2e6ec }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums }
.slow { background: #fff3d6 } .bad { color: #a31621; white-space: pre-wrap }
progress { width: 100%; height: 1em } svg { width: 100%; height: 14em }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1em 1em; margin: 0 }
dt { color: #5a6676 } dd { margin: 0 }
@media (prefers-color-scheme: dark) { body { color: #dde3ea; background: #14181d }
 th, td { border-color: #2b323b } .slow { background: #4a3a10 } dt { color: #93a0b0 } }
"""


def page(status: dict[str, Any], curve: Sequence[tuple[int, float]], title: str) -> str:
    """The page of a job.

    Args:
        status: as in status.json.
        curve: (step, loss).
        title: the run's name.
    """
    step, total = status["step"], status["total_steps"]
    fraction = min(1.0, step / total) if step is not None and total else 0.0
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<meta http-equiv='refresh' content='{_REFRESH_SECONDS}'>",
        f"<title>{_text(title)}: {_text(status['state'])}</title><style>{_STYLE}</style></head>",
        f"<body><h1>{_text(title)}</h1><p>{_text(status['application'])}, attempt"
        f" {status['attempt']}</p>",
        f"<progress value='{fraction:.4f}' max='1'></progress>",
        _facts(status),
    ]
    if status["error"]:
        error = status["error"]
        words = [f"{name}: {error[name]}" for name in ("where", "expected", "got", "remedy")
                 if error.get(name)]  # fmt: skip
        parts.append("<p class='bad'>" + _text("\n".join([error["what"], *words])) + "</p>")
    parts += [_curve(curve), _ranks(status["ranks"]), _events(status["events"])]
    parts.append("<p><a href='status.json'>status.json</a></p></body></html>")
    return "".join(parts)


def _facts(status: dict[str, Any]) -> str:
    speed, eta, saved = (
        status["examples_per_second"], status["eta_seconds"], status["last_checkpoint"]
    )  # fmt: skip
    rows = [
        ("state", status["state"]),
        ("step", f"{_known(status['step'])} of {_known(status['total_steps'])}"),
        ("epoch", _known(status["epoch"])),
        ("loss", _known(status["loss"], ".4f")),
        ("examples/s", _known(speed, ".1f")),
        ("time left", "-" if eta is None else _duration(eta)),
        ("ranks", f"{status['world_size']} of {status['wanted']}, generation"
                  f" {status['generation']}"),
        ("last checkpoint", "-" if saved is None else f"step {saved['step']}: {saved['path']}"),
        ("failures, preemptions", f"{status['restarts']}, {status['preemptions']}"),
    ]  # fmt: skip
    return "<dl>" + "".join(f"<dt>{_text(a)}</dt><dd>{_text(b)}</dd>" for a, b in rows) + "</dl>"


def _curve(curve: Sequence[tuple[int, float]]) -> str:
    if len(curve) < 2:
        return ""
    steps, losses = [point[0] for point in curve], [point[1] for point in curve]
    width = max(1, steps[-1] - steps[0])
    top, bottom = max(losses), min(losses)
    height = (top - bottom) or 1.0
    points = " ".join(
        f"{1000 * (step - steps[0]) / width:.1f},{200 - 200 * (loss - bottom) / height:.1f}"
        for step, loss in curve
    )
    return (
        f"<h2>Loss, {top:.3f} to {bottom:.3f}, steps {steps[0]} to {steps[-1]}</h2>"
        "<svg viewBox='0 -5 1000 210' preserveAspectRatio='none' role='img'>"
        f"<polyline fill='none' stroke='#2f6db5' stroke-width='2' points='{points}'"
        " vector-effect='non-scaling-stroke'/></svg>"
    )


def _ranks(ranks: Sequence[dict[str, Any]]) -> str:
    head = (
        "<h2>Ranks</h2><table><tr><th class='n'>rank<th>node<th>container<th>state<th>phase"
        "<th class='n'>step<th class='n'>own work, ms<th class='n'>waits, ms</tr>"
    )
    rows = []
    for one in ranks:
        words = [one["state"], "stopped" if one["stopped"] else "",
                 "slower than the others" if one["straggler"] else ""]  # fmt: skip
        rows.append(
            f"<tr{' class=slow' if one['straggler'] or one['stopped'] else ''}>"
            f"<td class='n'>{_text(_known(one['rank']))}<td>{_text(one['node'])}"
            f"<td>{_text(one['container'])}<td>{_text(', '.join(filter(None, words)))}"
            f"<td>{_text(one['phase'])} {one['phase_seconds']:.0f} s {_text(one['doing'])}"
            f"<td class='n'>{_text(_known(one['step']))}"
            f"<td class='n'>{_milliseconds(one['step_seconds'])}"
            f"<td class='n'>{_milliseconds(one['wait_seconds'])}</tr>"
        )
    return head + "".join(rows) + "</table>"


def _events(events: Sequence[dict[str, Any]]) -> str:
    rows = [
        f"<tr><td>{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(one['time']))} UTC"
        f"<td>{_text(one['what'])}</tr>"
        for one in reversed(events)
    ]
    return "<h2>Events</h2><table>" + "".join(rows) + "</table>"


def _text(value: Any) -> str:
    return html.escape(str(value))


def _known(value: Any, form: str = "") -> str:
    return "-" if value is None else format(value, form)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f}"


def _duration(seconds: float) -> str:
    hours, rest = divmod(int(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}"
