"""drift.html: what moved, the rows that show it, and what to do; then each column in detail."""

from __future__ import annotations

import itertools
import json
import string
from collections.abc import Mapping, Sequence
from typing import Any

from howdah import storage
from howdah.data import clean
from howdah.models.registry import manifest_of
from howdah.pages import page as pages
from howdah.pages import personal
from howdah.pages.charts import Axis, Frame, lines
from howdah.pages.figures import percent
from howdah.run_files import REPORT
from howdah.serving.drift.findings import Findings
from howdah.serving.drift.judge import COLUMNS, QUANTILE
from howdah.serving.drift.sentences import ADVICE, where_of
from howdah.serving.report.report import links_to

_TITLES = {
    "alarm": "Drift: these rows are not like the reference",
    "ok": "No drift",
    "too few rows": "Too few rows to judge",
    "not measured": "Not measured",
}
_MOODS = {"alarm": "bad", "ok": "good"}


def write(
    findings: Findings,
    directory: str,
    words: dict[int, str] | None = None,
    *,
    texts: str = "masked",
) -> dict[str, str]:
    """Write drift.html and drift.json into a directory; return their paths.

    Args:
        words: texts of tokens by their number; others are shown as numbers.
        texts: `report.texts`: none, plain, or else with mail addresses and phone numbers masked.
    """
    paths = {name: storage.join(directory, f"drift.{name}") for name in ("html", "json")}
    text = json.dumps(findings.as_dict(), indent=1, ensure_ascii=False) + "\n"
    html = render(findings, words or {}, texts=texts, links=_links(findings.directory, directory))
    storage.make_dirs(directory)
    storage.write_whole(paths["html"], html.encode("utf-8", "replace"))
    storage.write_whole(paths["json"], text.encode("utf-8", "replace"))
    return paths


def _links(model: str, directory: str) -> list[pages.Link]:
    """Return the addresses of the model's card and of its run's report, where these exist."""
    published = manifest_of(model) or {}
    run = published.get("run_directory") or storage.parent(model)
    targets = [
        ("Model card", storage.join(model, "README.md")),
        ("Run report", storage.join(run, REPORT)),
    ]
    return links_to(directory, targets)


def render(
    findings: Findings,
    words: Mapping[int, str],
    *,
    texts: str = "masked",
    links: Sequence[pages.Link] = (),
) -> str:
    """Render the page."""
    verdict = findings.verdict
    return pages.render(
        __package__,
        "drift.html.j2",
        links=links,
        findings=findings,
        verdict=verdict,
        title=_TITLES[verdict.state],
        mood=_MOODS.get(verdict.state, "unknown"),
        where=where_of(findings.reference),
        advice=list(dict.fromkeys(ADVICE[column.name] for column in verdict.alarms))[:3],
        without=findings.rows_without(),
        examples={
            headline: [
                (one, one.text and personal.sample(clean.shown(one.text), texts)) for one in rows
            ]
            for headline, rows in findings.rows_shown().items()
        },
        plots=_histograms(findings),
        history=[plot for name in COLUMNS if (plot := _history(findings, name))],
        what=COLUMNS,
        chance=round(1 / (1 - QUANTILE)),
        labels=findings.labels(),
        tokens=[
            (words.get(number, f"#{number}"), old, new) for number, old, new in findings.tokens()
        ],
    )


def _histograms(findings: Findings) -> list[Any]:
    """Draw the reference over the rows: labels, lengths and confidence."""
    where = where_of(findings.reference)
    labels = [
        (name, name, one["reference"], one["share"])
        for name, one in list(findings.labels().items())[:12]
    ]
    is_number = findings.reference.bins.task == "regression"
    named = {
        "Predicted labels": labels,
        "Length of the texts, in tokens": _ticked(findings, "length"),
        "Predicted numbers" if is_number else "Confidence": _ticked(findings, "confidence"),
    }
    return [_overlaid(title, bins, where) for title, bins in named.items() if bins]


def _ticked(findings: Findings, name: str) -> list[tuple[str, str, float, float]]:
    """Return (tick, bin, reference's share, share) of a histogram; a tick is a bin's lower edge."""
    bins = findings.histogram(name)
    if not bins:
        return []
    edges = [
        str(edge) if name == "length" else f"{edge:.2g}"
        for edge in getattr(findings.reference.bins, name)
    ]
    return [(tick, *each) for tick, each in zip([f"<{edges[0]}", *edges], bins, strict=True)]


def _overlaid(title: str, bins: list[tuple[str, str, float, float]], where: str) -> Any:
    """Draw shares of the rows as bars, and over them the outline of the reference."""
    top = 1.05 * max(share for _, _, *pair in bins for share in pair) or 1.0
    ticks = Axis.choices([tick for tick, *_ in bins])
    frame = Frame(title, ticks, Axis("% of rows", (0, 100 * top)))
    parts, outline = [], []
    for number, (_, name, old, new) in enumerate(bins):
        tip = f"{name}: {percent(new)} of these rows, {percent(old)} {where}"
        parts.append(frame.rect((number - 0.4, number + 0.4), (0, 100 * new), "c0", tip))
        outline += [(number - 0.5, 100 * old), (number + 0.5, 100 * old)]
    parts.append(frame.path(outline, "line c1"))
    return frame.svg("".join(parts), legend=[("c0", "these rows"), ("c1", where)])


def _history(findings: Findings, name: str) -> Any:
    """Draw a column over the partitions; None: fewer than two have a value."""
    columns = [point.verdict.column(name) for point in findings.points]
    values = [column.value for column in columns]
    if len([value for value in values if value is not None]) < 2:
        return None
    limits = [column.limit for column in columns]
    numbers = [value for value in (*values, *limits) if value is not None]
    below = name in ("estimated_accuracy", "accuracy")
    low, high = (min(numbers), max(numbers)) if below else (0.0, max(numbers))
    room = 0.08 * (high - low) or 0.05
    low, high = (max(0.0, low - room) if below else 0.0), high + room
    # Each partition has its own limit, which depends on its number of rows.
    shaded = [
        ((number - 0.5, number + 0.5), (low, limit) if below else (limit, high))
        for number, limit in enumerate(limits)
        if limit is not None
    ]
    return lines(
        name, [(name, [[number, value] for number, value in enumerate(values)])],
        x=Axis.choices(_short([point.name for point in findings.points])), y_label=COLUMNS[name],
        y=(low, high), marked=True, shaded=shaded,
    )  # fmt: skip


def _short(names: Sequence[str]) -> list[str]:
    """Return names without the beginning that they have in common.

    >>> _short(["ds=2026-11-08", "ds=2026-11-09"]), _short(["ds=1/hour=9", "ds=1/hour=10"])
    (['08', '09'], ['9', '10'])
    """
    first, last = min(names), max(names)  # between them the others lie
    same = "".join(
        a for a, _ in itertools.takewhile(lambda ab: ab[0] == ab[1], zip(first, last, strict=False))
    )
    common = same.rstrip(string.ascii_letters + string.digits)
    return [name.removeprefix(common) for name in names]
