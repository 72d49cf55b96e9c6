"""Renders a page: one self-contained HTML file that loads nothing, by a template of any room.

A template begins with `{% extends "base.html.j2" %}`, and may import `macros.html.j2`. All values
are escaped, and their control characters shown; a name that is not defined is an error. SVG of
`howdah.pages.charts` is markup already.
"""

from __future__ import annotations

import base64
import hashlib
import posixpath
from collections.abc import Sequence
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from howdah.core import paths
from howdah.core.terminal import shown
from howdah.pages import figures
from howdah.pages.meanings import MEANINGS

Link = tuple[str, str]
"""(text, address) of another page."""


def render(
    package: str, name: str, *, links: Sequence[Link] = (), script: str = "", allow: str = "",
    **values: Any,
) -> str:  # fmt: skip
    """Render a page as HTML.

    Args:
        package, name: the template, a file of a package.
        links: other pages, shown in the header (`link` makes their addresses).
        script: the page's own script, which follows the common one.
        allow: what the page may do besides, as directives of a Content-Security-Policy:
            "connect-src 'self'" lets it ask the server that it came from.
        values: the template's variables.
    """
    import jinja2
    from markupsafe import Markup

    folders = dict.fromkeys((package, __package__))
    environment = jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(each, ".") for each in folders]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_visible,
    )
    for each in (
        figures.number, figures.percent, figures.size, figures.duration, figures.milliseconds,
        figures.moment,
    ):  # fmt: skip
        environment.filters[each.__name__] = each
    # In a table's cell a figure and its sign stay on one line.
    environment.filters["percent"] = lambda share: figures.percent(share).replace(" ", "\u00a0")
    environment.globals["meanings"] = MEANINGS
    common = files(__package__)
    whole = common.joinpath("page.js").read_text("utf-8") + script
    digest = base64.b64encode(hashlib.sha256(whole.encode()).digest()).decode()
    return environment.get_template(name).render(
        values,
        links=links,
        script=Markup(whole),
        style=Markup(common.joinpath("page.css").read_text("utf-8")),
        policy=Markup(
            "default-src 'none'; img-src data:; base-uri 'none'; form-action 'none';"
            f" style-src 'unsafe-inline'; script-src 'sha256-{digest}'; {allow}"
        ),
    )


def link(directory: str, target: str) -> str | None:
    """Return the address of a file from a page in a directory; None: it is on another storage.

    The address is relative: it still leads there after both were moved, and where both are served.

    >>> link("runs/news", "runs/other v/report.html"), link("/data/1", "hdfs://nn/runs/x")
    ('../other%20v/report.html', None)
    """
    places = [
        ("", "", paths.local_path(path))
        if paths.is_local(path)
        else (paths.scheme(path), paths.authority(path), paths.inner(path))
        for path in (directory, target)
    ]
    if places[0][:2] != places[1][:2]:
        return None
    return quote(posixpath.relpath(places[1][2], places[0][2]))


def _visible(value: Any) -> Any:
    """Show the control characters of a text; markup is a page's own."""
    from markupsafe import Markup

    return shown(value) if isinstance(value, str) and not isinstance(value, Markup) else value
