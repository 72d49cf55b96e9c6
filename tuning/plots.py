"""Plots of a study's page as self-contained inline SVG, by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

# Okabe and Ito's palette: distinguishable with any colour vision.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")


def svg(name: str, width: float, height: float, draw: Callable[[Any, Any], None]) -> str:
    """Draw on a figure of width x height inches and return its <svg> element.

    Args:
        name: prefix that makes the SVG's ids unique in a page.
    """
    import matplotlib
    from matplotlib.figure import Figure

    style = {
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": 9,
        "svg.fonttype": "none",  # text stays text: it can be selected and searched
        "svg.hashsalt": name,
        "text.parse_math": False,  # $ in a label does not begin a formula
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure, figure.subplots())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
