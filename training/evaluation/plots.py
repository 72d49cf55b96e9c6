"""The report's plots as inline SVG by matplotlib; nothing is loaded from outside."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["COLOURS", "confusion_matrix", "curve", "reliability_diagram", "svg"]

# Okabe and Ito's palette: distinguishable with any colour vision.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_MAX_ANNOTATED = 20  # classes; in a larger matrix numbers would overlap

Series = tuple[str, Sequence[float], Sequence[float | None]]
"""(name, x values, y values); None is not drawn."""


def svg(name: str, width: float, height: float, draw: Callable[[Any, Any], None]) -> str:
    """Draw on a figure of width x height inches and return its <svg> element.

    Args:
        name: makes ids in the SVG unique among those of one page.
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


def curve(
    title: str, series: Sequence[Series], *, x_label: str = "step", points: bool = False
) -> str:
    """Lines over steps; `points` marks each value (for a few evaluations)."""

    def draw(figure: Any, axes: Any) -> None:
        for number, (name, x, y) in enumerate(series):
            kept = [(a, b) for a, b in zip(x, y, strict=True) if b is not None]
            marked = points or len(kept) < 3 or number > 0
            axes.plot(
                [a for a, _ in kept],
                [b for _, b in kept],
                label=name,
                color=COLOURS[number % len(COLOURS)],
                linewidth=1.6,
                marker="o" if marked else None,
                markersize=4,
            )
        axes.set_title(title, loc="left")
        axes.set_xlabel(x_label)
        axes.grid(alpha=0.25)
        if len(series) > 1:
            axes.legend(frameon=False)

    return svg(f"curve-{title}", 4.6, 2.9, draw)


def confusion_matrix(name: str, matrix_CC: Sequence[Sequence[int]], labels: Sequence[str]) -> str:
    """Rows: labels; columns: predictions; shade: share of the row."""
    counts_CC = np.asarray(matrix_CC)
    classes = len(labels)
    total_C1 = counts_CC.sum(axis=1, keepdims=True)
    share_CC = np.divide(counts_CC, total_C1, out=np.zeros(counts_CC.shape), where=total_C1 > 0)
    size = min(9.0, 3.2 + 0.32 * classes)
    shown = [label if len(label) <= 24 else label[:23] + "…" for label in labels]

    def draw(figure: Any, axes: Any) -> None:
        image = axes.imshow(share_CC, cmap="Blues", vmin=0, vmax=1)
        axes.set_title("Confusion matrix", loc="left")
        axes.set_xlabel("predicted")
        axes.set_ylabel("label")
        axes.set_xticks(range(classes), shown, rotation=45, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(classes), shown)
        for side in ("top", "right"):
            axes.spines[side].set_visible(True)
        figure.colorbar(image, ax=axes, shrink=0.75, label="share of the label's rows")
        if classes <= _MAX_ANNOTATED:
            for row in range(classes):
                for column in range(classes):
                    if counts_CC[row, column]:
                        axes.text(
                            column,
                            row,
                            f"{counts_CC[row, column]:,}",
                            ha="center",
                            va="center",
                            fontsize=8,
                            color="white" if share_CC[row, column] > 0.5 else "#1c2530",
                        )

    return svg(f"confusion-{name}", size + 0.8, size, draw)


def reliability_diagram(name: str, bins: Sequence[dict], ece: float) -> str:
    """Accuracy by confidence bin; below it the number of rows in each bin."""

    def draw(figure: Any, axes: Any) -> None:
        filled = [b for b in bins if b["rows"]]
        width = bins[0]["upper"] - bins[0]["lower"]
        left = [b["lower"] for b in filled]
        axes.plot([0, 1], [0, 1], color="#5b6776", linewidth=1, linestyle="--", label="ideal")
        axes.bar(
            left, [b["accuracy"] for b in filled], width, align="edge", color=COLOURS[0],
            alpha=0.75, edgecolor="white", label="accuracy",
        )  # fmt: skip
        axes.plot(
            [b["confidence"] for b in filled], [b["accuracy"] for b in filled], "o",
            color=COLOURS[1], markersize=4, label="mean confidence",
        )  # fmt: skip
        rows = np.array([b["rows"] for b in filled], float)
        axes.bar(
            left, -0.18 * rows / rows.max(), width, align="edge", color="#b8c1cc",
            edgecolor="white", label="rows",
        )  # fmt: skip
        axes.set_xlim(0, 1)
        axes.set_ylim(-0.2, 1.02)
        axes.set_yticks(np.linspace(0, 1, 6))
        axes.set_title(f"Reliability (ECE {ece:.3f})", loc="left")
        axes.set_xlabel("confidence of the predicted class")
        axes.legend(frameon=False, loc="upper left")

    return svg(f"reliability-{name}", 4.6, 3.9, draw)
