"""A challenger beside the version that answers: the same texts, in a process of its own.

A process, because nothing in it can then delay or fail a request: not its computing (it has the
lowest priority), not its memory, not a crash. What it gets waits in a bounded queue; what does not
fit is counted and left out.

    python -m howdah.serving.versions.shadow PATH THREADS

It reads lines of JSON {"text", "pair"} and writes {"label", "scores", "seconds"} for each.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from howdah.core import threads
from howdah.core.processes import die_with_parent
from howdah.errors import ModelError, UsageError
from howdah.models.version import Version, open_version
from howdah.process import isolation
from howdah.serving.compute.generation import Generation
from howdah.serving.compute.metrics import Metrics
from howdah.serving.deployment.split import require_comparable
from howdah.serving.prediction.rows import Prediction, Row

_QUEUE, _MOST_CHARACTERS = 256, 65_536
"""Texts that wait, and characters of one: together they bound the memory."""
_NICENESS = 19
_RESULTS = ("agrees", "disagrees", "left out", "failed")


def challenger(given: str, served: Version, root: str | None, publish_directory: str) -> Version:
    """The model of serve.shadow.

    Args:
        given: a version of the served model (4, v=4), or a model.
        root: directory of the published model that is served; None: it is none.
    Raises:
        ModelError: there is none, or its labels are others.
        UsageError: a version of what has no versions.
    """
    number = given.removeprefix("v=")
    if number.isdigit():
        home = root or (served.path.rpartition("/")[0] if served.number is not None else None)
        if home is None:
            raise UsageError(
                "a version is no challenger of an export", where="--shadow", got=given,
                expected="a model's path", remedy="serve a published model, or give a path",
            )  # fmt: skip
        found = open_version(f"{home}/v={number}", publish_directory)
    else:
        found = open_version(given, publish_directory)
    require_comparable(served, found, 0.5)
    return found


class Shadow:
    """Sends texts to the challenger's process, and counts what it says.

    Args:
        variant: the challenger.
        compute_threads: of its process.
    """

    def __init__(
        self,
        variant: Version,
        *,
        compute_threads: int,
        metrics: Metrics,
        say: Callable[[str], None],
    ) -> None:
        self._variant, self._threads = variant, compute_threads
        self._metrics, self._say = metrics, say
        self._waiting: queue.Queue[dict[str, Any]] = queue.Queue(_QUEUE)
        self._process: subprocess.Popen[str] | None = None
        self._stopped = False
        for result in _RESULTS:
            metrics.shadowed.labels(result)

    def start(self) -> None:
        """Start it in the background; it is started again when it ends."""
        threads.start(self._run, name="shadow", failed=threads.RESTART, say=self._say)

    def stop(self) -> None:
        """End it."""
        self._stopped = True
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def offer(self, row: Row, prediction: Prediction) -> None:
        """Queue a text that was answered, if there is room. Called by the computing thread."""
        if prediction.scores is None:
            return
        if len(row.text or "") > _MOST_CHARACTERS:
            self._metrics.shadowed.labels("left out").inc()
            return
        item = {
            "text": row.text, "pair": row.pair, "label": prediction.label,
            "scores": [float(score) for score in prediction.scores],
        }  # fmt: skip
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            self._metrics.shadowed.labels("left out").inc()

    def _run(self) -> None:
        name = "howdah.serving.versions.shadow"
        process = self._process = subprocess.Popen(
            isolation.module(name, self._variant.absolute_path, str(self._threads)),
            env=isolation.environment(),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8",
            preexec_fn=functools.partial(die_with_parent, parent=os.getpid()),
            start_new_session=True,
        )  # fmt: skip
        try:
            ready = process.stdout.readline()
            if not ready:
                raise self._ended(process)
            self._metrics.shadow_up.set(1)
            self._say(f"shadow: {self._variant.title} gets the same texts")
            while True:
                item = self._waiting.get()
                process.stdin.write(json.dumps({"text": item["text"], "pair": item["pair"]}) + "\n")
                process.stdin.flush()
                line = process.stdout.readline()
                if not line:
                    raise self._ended(process)
                self._compare(item, json.loads(line))
        except BrokenPipeError:
            raise self._ended(process) from None
        finally:
            self._metrics.shadow_up.set(0)
            process.kill()
            process.wait()

    def _ended(self, process: subprocess.Popen[str]) -> ModelError:
        code = process.wait()
        if self._stopped:
            sys.exit()  # ends this thread alone
        self._metrics.shadowed.labels("failed").inc()
        return ModelError("the challenger's process has ended", where=self._variant.path,
                          got=f"exit code {code}")  # fmt: skip

    def _compare(self, item: dict[str, Any], found: dict[str, Any]) -> None:
        if found.get("scores") is None:
            self._metrics.shadowed.labels("failed").inc()
            return
        agrees = found["label"] == item["label"]
        self._metrics.shadowed.labels("agrees" if agrees else "disagrees").inc()
        self._metrics.shadow_seconds.observe(found["seconds"])
        best = max(range(len(item["scores"])), key=item["scores"].__getitem__)
        self._metrics.shadow_difference.observe(abs(item["scores"][best] - found["scores"][best]))


def main(path: str, compute_threads: int) -> int:
    """The challenger's process."""
    os.nice(_NICENESS)
    from howdah.serving.compute.generation import open_generation
    from howdah.serving.prediction.classify import classify

    generation: Generation = open_generation(open_version(path), threads=compute_threads)
    print("{}", flush=True)
    for line in sys.stdin:
        given = json.loads(line)
        began = time.monotonic()
        [one] = classify(generation.model, [Row("0", given["text"], pair=given["pair"])])
        scores = None if one.scores is None else [float(score) for score in one.scores]
        seconds = time.monotonic() - began
        print(json.dumps({"label": one.label, "scores": scores, "seconds": seconds}), flush=True)
    return 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1], int(sys.argv[2])))
