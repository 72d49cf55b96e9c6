"""index.html: what each lesson printed and drew on this machine."""

from __future__ import annotations

import base64
import json
import os
import platform
import re
import time
from dataclasses import asdict
from pathlib import Path

from howdah.pages import page as pages
from tools.lessons.lesson import Lesson, Result, lessons

SAVED = "result.json"


def save(result: Result, directory: Path) -> None:
    """Keep a run's result beside its pictures, for a page that is made later."""
    values = asdict(result) | {
        "lesson": result.lesson.folder.name,
        "pictures": [path.name for path in result.pictures],
        "ended": time.time(),
    }
    (directory / SAVED).write_text(json.dumps(values, indent=1) + "\n", "utf-8")


def write(place: Path) -> Path:
    """Write the page of all lessons that have run, and return its path."""
    shown = [_shown(lesson, place) for lesson in lessons()]
    path = place / "index.html"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        pages.render(__package__, "index.html.j2", lessons=shown, machine=_machine()), "utf-8"
    )
    return path


def _shown(lesson: Lesson, place: Path) -> dict:
    directory = place / lesson.folder.name
    saved = directory / SAVED
    result = json.loads(saved.read_text("utf-8")) if saved.exists() else None
    return {
        "number": lesson.number,
        "title": lesson.title,
        "question": _html(lesson.section()),
        "commands": lesson.block,
        "concludes": _html(lesson.section("What one concludes")),
        "address": pages.link(str(place.absolute()), str(lesson.folder / "README.md")),
        "result": result,
        "errors": "\n".join(result["errors"].strip().splitlines()[-20:]) if result else "",
        "pictures": [_embedded(directory / name) for name in result["pictures"]] if result else [],
    }


def _html(text: str):
    """Markdown as HTML. Links of a README lead from its own folder: on the page they are text."""
    import markdown
    from markupsafe import Markup

    html = markdown.markdown(text, extensions=["tables", "fenced_code"])
    return Markup(re.sub(r"</?a\b[^>]*>", "", html))


def _embedded(picture: Path) -> str:
    """The address of a picture that the page itself holds."""
    return "data:image/svg+xml;base64," + base64.b64encode(picture.read_bytes()).decode()


def _machine() -> str:
    import psutil

    with open("/proc/cpuinfo", encoding="utf-8") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    name = names[0] if names else platform.machine()
    memory = psutil.virtual_memory().total / 2**30
    return f"{len(os.sched_getaffinity(0))} cores ({name}), {memory:.0f} GiB"
