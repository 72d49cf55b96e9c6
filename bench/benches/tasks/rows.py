"""Rows of the tasks, made of real text, as JSON lines."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Iterator

from tools.demo import corpus

PAIRS, TAGS = "pairs", "tags"


def write(path: str, task: str, count: int, ag_news: str | None) -> None:
    """Write `count` rows of a task.

    pairs: a title and a description of AG News, label `match` or `other`: of half of the titles the
        description is that of another article of the same class. Without AG News the first line of
        a docstring and the rest of it, or the rest of another one of the same package.
    tags: docstrings; their package, what they describe (module, class, method, function) and
        `examples`, if there are any.
    """
    made = list({PAIRS: _pairs, TAGS: _tags}[task](ag_news))
    random.Random(0).shuffle(made)
    if len(made) < count:
        raise SystemExit(f"{task}: there are {len(made):,} rows, fewer than {count:,}")
    with open(path, "w", encoding="utf-8") as file:
        for row in made[:count]:
            file.write(json.dumps(row) + "\n")


def _pairs(ag_news: str | None) -> Iterator[dict]:
    draw = random.Random(1)
    both = _of_articles(ag_news) if ag_news else _of_docstrings()
    by_class: dict[str, list[str]] = {}
    for kind, _, second in both:
        by_class.setdefault(kind, []).append(second)
    for number, (kind, first, second) in enumerate(both):
        match = draw.random() < 0.5
        if not match:
            second = draw.choice(
                [text for text in draw.sample(by_class[kind], 2) if text != second]
            )
        label = "match" if match else "other"
        yield {"id": f"{number:06d}", "text": first, "second": second, "label": label}


def _of_articles(path: str) -> list[tuple[str, str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return [(label, title, text) for label, title, text in csv.reader(file)]


def _of_docstrings() -> list[tuple[str, str, str]]:
    rows = []
    for _, text, package in corpus.corpus(corpus.PACKAGES):
        first, _, rest = text.strip().partition("\n")
        if len(first) > 20 and len(rest.strip()) > 40:
            rows.append((package, first, rest.strip()))
    return rows


def _tags(_: str | None) -> Iterator[dict]:
    for row_id, text, package in corpus.corpus(corpus.PACKAGES):
        if len(text) < 20:
            continue
        name = row_id.rpartition(":")[2].partition("#")[0]
        last = name.rpartition(".")[2]
        if name == "<module>":
            kind = "module"
        elif last[:1].isupper():
            kind = "class"
        else:
            kind = "method" if "." in name else "function"
        examples = ["examples"] if ">>>" in text else []
        yield {"id": row_id, "text": text, "label": [package, kind, *examples]}
