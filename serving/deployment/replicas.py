"""The processes of the Ray Serve deployment: replicas that hold a model, and the server itself.

Nothing here imports Ray at module level, since Ray's workers import this module by its name. Ray
pickles what its processes send each other.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from howdah.serving.prediction.rows import Prediction, Row

_MOST_LINES = 1000


class Classifier:
    """A replica: one opened model.

    Args:
        path: the model's export.
        threads: number of compute threads.
    """

    def __init__(self, path: str, threads: int) -> None:
        from howdah.models.version import open_version
        from howdah.serving.compute.generation import open_generation

        self._generation = open_generation(open_version(path), threads=threads, one_at_a_time=True)
        # Ray calls methods in several threads, and the tokenizer's truncation is shared state.
        self._lock = threading.Lock()
        self._began: float | None = None
        """When the computation began that runs now; None: none runs."""

    def describe(self) -> dict[str, Any]:
        """Return the fields of RemoteModel (serving/compute/generation.py)."""
        return self._generation.described()

    def classify(self, rows: list[Row]) -> list[Prediction]:
        """Return the predictions of rows, in their order."""
        from howdah.serving.prediction.classify import classify

        with self._lock:
            self._began = time.monotonic()
            try:
                return classify(self._generation.model, rows)
            finally:
                self._began = None

    def check_health(self) -> None:
        """Tell Ray Serve whether this replica works: one that does not is replaced.

        Raises:
            RuntimeError: a computation hangs; no thread can be ended from outside.
        """
        from howdah.serving.http.state import HANGING_SECONDS

        began = self._began
        if began is not None and time.monotonic() - began > HANGING_SECONDS:
            raise RuntimeError(f"no answer of the model for {HANGING_SECONDS:g} s")


class Ingress:
    """The server's own application (serving/http), in a process that holds no model.

    Args:
        versions: {address, path, number} of each model (models/version.py).
        share: share of requests that the second model answers; 0.0 if there is one model.
        settings: the section `serve`.
        handles: Ray Serve's handles of the Classifiers, one for each model.
    """

    async def __init__(
        self, versions: list[dict[str, Any]], share: float, settings: dict[str, Any], *handles: Any
    ) -> None:
        from howdah.config.options.serve import ServeSection
        from howdah.models.version import Version
        from howdah.serving.compute.generation import Generation, RemoteModel
        from howdah.serving.compute.metrics import Metrics
        from howdah.serving.deployment import listening
        from howdah.serving.deployment.dispatch import Dispatcher
        from howdah.serving.http.app import build
        from howdah.serving.http.front import Front
        from howdah.serving.http.state import RELOAD_SECONDS, State
        from howdah.serving.http.tokens import TokenFile

        self._lines: deque[str] = deque(maxlen=_MOST_LINES)
        say = self._lines.append
        # Asked of the replicas, and not read from howdah.json: an export of other tools has none,
        # and the replicas choose what runs the model.
        described = await asyncio.gather(*(one.describe.remote() for one in handles))
        generations = [
            Generation(version=Version(**version), model=RemoteModel(**model))
            for version, model in zip(versions, described, strict=True)
        ]
        section, metrics = ServeSection.model_validate(settings), Metrics()
        tokens = None
        if section.token_file is not None:
            tokens = TokenFile(section.token_file, say)
            tokens.start(RELOAD_SECONDS)
        state = State(
            compute=Dispatcher(generations, share, handles, metrics, say), metrics=metrics,
            settings=section, hosts=listening.host_names(section.host), tokens=tokens, say=say,
            share=share,
        )  # fmt: skip
        self._app = Front(build(state), state)

    def __serve_build_asgi_app__(self) -> Any:
        """Return the application that answers Ray Serve's HTTP."""
        return self._app

    def lines(self) -> list[str]:
        """Return the lines that the server has written since the last call."""
        lines = []
        while self._lines:
            lines.append(self._lines.popleft())
        return lines
