"""Decides the three scenarios of the course by the figures of the other lessons, as a tree.

python decide.py ..        the folder of all lessons' outputs
"""

import matplotlib.pyplot as plt
from questions import SCENARIOS

GREY = "#808080"


def draw(trees: dict) -> None:
    """Each scenario is a path: what was decided goes on, the other branch ends."""
    most = max(map(len, trees.values()))
    _, axes = plt.subplots(len(trees), 1, figsize=(9, 7))
    for axis, (name, path) in zip(axes, trees.items(), strict=True):
        axis.set_title(name, color=GREY, fontsize=9, loc="left")
        axis.set(xlim=(-0.5, most - 0.4), ylim=(-1.15, 0.75))
        axis.axis("off")
        for x, question in enumerate(path):
            asks = "\n".join(wrapped(f"{question.asks} ({question.lesson})"))
            axis.text(x, 0.35, asks, ha="center", va="center", fontsize=7, color=GREY)
            for side, text, holds in ((-0.22, question.yes, True), (0.22, question.no, False)):
                color = "tab:blue" if holds is question.holds else GREY
                axis.plot((x, x + side), (0, -0.45), color=color, lw=1.5 if color != GREY else 0.6)
                word = "yes" if holds else "no"
                text = "\n".join(wrapped(f"{word}: {text}", 15))
                axis.text(x + side, -0.5, text, ha="center", va="top", fontsize=6, color=color)
    plt.tight_layout()
    plt.savefig("tree.svg", transparent=True)


def wrapped(text: str, width: int = 24) -> list[str]:
    """Lines of about this width."""
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


trees = {name: questions() for name, questions in SCENARIOS.items()}
for name, path in trees.items():
    print(f"\n{name}\n")
    print(f"{'question':<58}{'lesson':>6}{'figures':>24}  decides")
    for one in path:
        first, second = (f"{value:,.4g}" for value in one.values)
        figures = f"{first}; {second} {one.unit}"
        answer = "yes" if one.holds else "no"
        print(f"{one.asks:<58}{one.lesson:>6}{figures:>24}  {answer}: {one.decides}")
    print(f"\nSo: {'; '.join(one.decides for one in path)}.\n")
    print(f"{name[:1]}: questions that figures have answered = {len(path)}")
draw(trees)
