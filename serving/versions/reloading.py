"""Follows the published model: a new current version is opened beside the old one, tried, swapped.

The old version goes on answering if the storage cannot be read, or the new version does not open or
has other labels.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from howdah import storage
from howdah.core import threads
from howdah.core.machine import return_free_memory
from howdah.errors import HowdahError, ModelError
from howdah.models.registry import Published
from howdah.models.version import open_version
from howdah.serving.compute.batcher import Batcher
from howdah.serving.compute.generation import Generation, open_generation, try_out
from howdah.serving.compute.metrics import Metrics

_RESULTS = ("swapped", "refused", "labels changed")


@dataclass(frozen=True)
class Look:
    """A version, and the state of its files: names, sizes, times."""

    version: int
    files: str


def decide(serving: int | None, current: Look, refused: Look | None) -> Literal["stay", "open"]:
    """Decide whether to open the current version.

    Args:
        serving: the version that answers.
        current: the version that is current.
        refused: the version that was refused last; it is not tried again until the pointer moves,
            or its files change.
    """
    if current.version == serving or current == refused:
        return "stay"
    return "open"


def require_same_answers(old: Generation, new: Generation) -> None:
    """Require that clients of the old version can read the answers of the new one.

    Raises:
        ModelError: other labels, in another order, or another task.
    """
    for what, before, after in (
        ("labels", list(old.outputs.labels), list(new.outputs.labels)),
        ("task", old.outputs.task, new.outputs.task),
        ("kind of texts", old.model.pairs, new.model.pairs),
    ):
        if before != after:
            raise _OtherLabels(
                f"the new version has other {what}",
                where=new.version.path,
                expected=str(before),
                got=str(after),
                remedy="inform the clients, then start the server again to serve it",
            )


class _OtherLabels(ModelError):
    pass


class Reloader:
    """Looks at the pointer, in a thread.

    Args:
        root: the published model's directory.
        batcher: the batcher whose generation is swapped.
        seconds: interval between two looks.
        compute_threads: number of a version's compute threads.
        say: takes a line.
        swapped: called with the new generation.
    """

    def __init__(
        self,
        root: str,
        batcher: Batcher,
        *,
        seconds: float,
        compute_threads: int,
        metrics: Metrics,
        say: Callable[[str], None],
        swapped: Callable[[Generation], None] = lambda generation: None,
    ) -> None:
        self._root, self._batcher, self._seconds = root, batcher, seconds
        self._threads, self._metrics, self._say = compute_threads, metrics, say
        self._swapped = swapped
        self._refused: Look | None = None
        self._away = False
        self._unswept = 0
        self._stop = threading.Event()
        for result in _RESULTS:
            metrics.reloads.labels(result)

    def start(self) -> None:
        """Start the thread, which is restarted after an unexpected failure."""
        threads.start(self._run, name="reload", failed=threads.RESTART, say=self._say)

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(self._seconds):
            self.look()

    def look(self) -> None:
        """Look once, and open a new current version."""
        try:
            look = self._current()
        except HowdahError as error:
            self._metrics.pointer_errors.inc()
            if not self._away:  # once, not every five seconds
                self._say(f"current.json cannot be read, the version stays: {error.what}")
            self._away = True
            return
        if self._away:
            self._say("current.json can be read again")
            self._away = False
        if (
            look is not None
            and decide(self._batcher.generation.version.number, look, self._refused) == "open"
        ):
            self._refused = None if self._open(look) else look
        elif self._unswept:
            self._unswept -= 1
            gc.collect()
            return_free_memory()  # the old version's

    def _current(self) -> Look | None:
        """Return the current version's state; None: the version that answers is current."""
        current = Published(self._root).current()
        number = self._batcher.generation.version.number if current is None else current["version"]
        if number == self._batcher.generation.version.number:
            return None
        entries = storage.list_dir(Published(self._root).path_of(number))
        files = sorted((one.name, one.size, str(one.modified)) for one in entries)
        return Look(number, str(files))

    def _open(self, look: Look) -> bool:
        """Open a version and swap it in; return False if it is refused."""
        old = self._batcher.generation
        result = "refused"
        try:
            version = open_version(Published(self._root).path_of(look.version))
            new = open_generation(version, threads=self._threads)
            require_same_answers(old, new)
            try_out(new, self._batcher.kept())
        except Exception as error:  # noqa: BLE001 - a damaged model may raise any error
            if isinstance(error, _OtherLabels):
                result = "labels changed"
            what = error.what if isinstance(error, HowdahError) else type(error).__name__
            self._say(
                f"v={look.version} is not served, {old.version.title} stays: {what}"
                + (f" ({error.where})" if getattr(error, "where", None) else "")
            )
            self._metrics.reloads.labels(result).inc()
            return False
        self._batcher.swap(new)
        self._metrics.reloads.labels("swapped").inc()
        self._say(f"serving {new.version.title} (run {new.model.run_id})")
        self._swapped(new)
        self._unswept = 2  # at the first look, requests may still use the old version
        return True
