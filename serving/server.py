"""`howdah serve`: one process that answers by HTTP until a signal ends it.

The main thread runs the event loop (requests, answers); other threads compute, and one follows the
published model.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import logging
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from howdah.config.options.drift import DriftSection
from howdah.config.options.serve import MAX_BATCH_TOKENS, MAX_QUEUE, ServeSection
from howdah.core import machine, threads
from howdah.core.processes import limit
from howdah.errors import Interrupted, ModelError, Terminated, UsageError
from howdah.models.version import open_version
from howdah.serving.compute.generation import Generation, open_generation, workers_of
from howdah.serving.deployment import listening
from howdah.serving.http.state import READ_SECONDS, RELOAD_SECONDS
from howdah.serving.http.tokens import TokenFile

_MOST_CONNECTIONS, _MOST_OF_ADDRESS = 1000, 500
_DESCRIPTORS = 4096
"""Limit of file descriptors that this process sets, if allowed: each connection takes one."""
_BACKLOG, _ACCEPTED_AT_ONCE = 512, 32
"""Connections that the kernel queues, and those that asyncio accepts before it reads again."""
_WATCH_SECONDS = 1.0
_HEAD_SECONDS = 10.0
GRACE_SECONDS = limit("grace_seconds", 30.0)
"""Seconds after a SIGTERM for answering the requests that are being processed: less than Kubernetes
and systemd wait before they kill (docs/kubernetes.md)."""
_MAX_WAIT_SECONDS = 0.002
"""Time that a batch with room waits for more texts while several clients send: a fraction of the
time for one text."""
_KEEP_ALIVE_SECONDS = 75
_SWITCH_SECONDS = 0.0005
_LAST_SECONDS = 2.0
"""Time after the grace for answers that are being sent."""
_PACKAGES = ("fastapi", "uvicorn", "prometheus_client")


@dataclass(frozen=True, kw_only=True)
class Started:
    """A running server's address and model."""

    url: str
    port: int
    identity: dict[str, Any]
    framework: str
    follows: bool
    """True if the server switches to later versions of the published model."""

    def as_dict(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "url": self.url, "port": self.port, "pid": os.getpid(), **self.identity,
            "framework": self.framework, "follows": self.follows,
        }  # fmt: skip


def require_packages() -> None:
    """Require the server's packages.

    Raises:
        UsageError: some are not installed; the error lists them.
    """
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            "the server's packages are not installed",
            got=f"no {', '.join(missing)}",
            remedy="pip install 'howdah[serve]' in Howdah's environment",
        )


def serve(
    model: str,
    settings: ServeSection,
    *,
    publish_directory: str,
    say: Callable[[str], None],
    ready: Callable[[Started], None] = lambda started: None,
    limits: DriftSection | None = None,
) -> None:
    """Serve a model until SIGTERM or SIGINT, then answer the requests that came before.

    Args:
        model: its address (models/version.py).
        settings: the server's address and limits.
        publish_directory: publish.directory of the configuration.
        say: takes a line.
        ready: called once, when requests are answered.
        limits: section `drift` of the configuration, for drift alarms; None: its defaults.
    Raises:
        UsageError, ConfigError: a port that is taken, no token, no packages.
        ModelError, StorageError: there is no such model, or it does not open.
        Terminated, Interrupted: at the end, according to the signal.
    """
    require_packages()
    # The event loop releases Python's lock at each system call; by default a computing thread that
    # gets it would keep it for 5 ms.
    sys.setswitchinterval(_SWITCH_SECONDS)
    # There are only a few texts at a time, for which the tokenizer's threads would waste cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    guarded = settings.token_file is not None or settings.open
    tokens = None if settings.token_file is None else TokenFile(settings.token_file, say)
    _raise_descriptors()
    with listening.listen(settings.host, settings.port, guarded=guarded) as listener:
        version = open_version(model, publish_directory)
        say(f"opening {version.title}")
        settings = settings.model_copy(update={"threads": settings.threads or machine.cores()})
        first = open_generation(version, threads=settings.threads)
        server = _Server(first, settings, tokens, listener, publish_directory, say, limits)
        number = server.run(ready)
    if number == signal.SIGINT:
        raise Interrupted("interrupted")
    raise Terminated("terminated (SIGTERM)")


class _Server:
    """The parts of one server, made in `run`."""

    def __init__(
        self,
        first: Generation,
        settings: ServeSection,
        tokens: TokenFile | None,
        listener: socket.socket,
        publish_directory: str,
        say: Callable[[str], None],
        limits: DriftSection | None,
    ) -> None:
        from howdah.serving.compute.batcher import Batcher
        from howdah.serving.compute.metrics import Metrics
        from howdah.serving.http.state import State
        from howdah.serving.versions.live_drift import LiveDrift
        from howdah.serving.versions.reloading import Reloader

        self._settings, self._listener, self._say = settings, listener, say
        self._loop: asyncio.AbstractEventLoop | None = None
        self._signals: list[int] = []
        metrics = self._metrics = Metrics()
        root = first.version.root if first.version.follows else None
        self._drift = LiveDrift(first, metrics, say, limits)
        self.batcher = Batcher(
            first, budget=MAX_BATCH_TOKENS, most=MAX_QUEUE,
            workers=workers_of(first, settings.threads),
            wait=_MAX_WAIT_SECONDS, metrics=metrics, call_soon=self._call_soon,
            answered=self._answered, say=say,
        )  # fmt: skip
        self.reloader = None
        if root is not None:
            self.reloader = Reloader(
                root, self.batcher, seconds=RELOAD_SECONDS,
                compute_threads=settings.threads, metrics=metrics, say=say,
                swapped=self._drift.begin,
            )  # fmt: skip
        self.state = State(
            compute=self.batcher, metrics=metrics, settings=settings, tokens=tokens,
            hosts=listening.host_names(settings.host), say=say,
            before_metrics=self._drift.publish,
            unpredicted=lambda empty, errors: self._drift.failed(empty=empty, errors=errors),
        )  # fmt: skip

    def run(self, ready: Callable[[Started], None]) -> int:
        """Serve, and return the signal that ended the server."""
        try:
            return asyncio.run(self._run(ready))
        finally:
            self._loop = None
            self.batcher.stop()
            if self.reloader is not None:
                self.reloader.stop()
            if self.state.tokens is not None:
                self.state.tokens.stop()

    async def _run(self, ready: Callable[[Started], None]) -> int:
        import uvicorn

        from howdah.serving.http.app import build
        from howdah.serving.http.connection import connection_class
        from howdah.serving.http.front import Front

        loop = self._loop = asyncio.get_running_loop()
        asked_to_end = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number, asked_to_end)
        for name in ("uvicorn.error", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        server = _uvicorn(
            uvicorn.Config(
                Front(build(self.state), self.state), log_config=None, access_log=False,
                lifespan="off", proxy_headers=False, loop="asyncio", ws="none", server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=int(_LAST_SECONDS), backlog=_ACCEPTED_AT_ONCE,
                http=connection_class(
                    head_seconds=min(_HEAD_SECONDS, READ_SECONDS),
                    most=_MOST_CONNECTIONS, most_of_address=_MOST_OF_ADDRESS,
                    opened=self._metrics.connections.set,
                ),
            )
        )  # fmt: skip
        self.batcher.start()
        if self.reloader is not None:
            self.reloader.start()
        if self.state.tokens is not None:
            self.state.tokens.start(RELOAD_SECONDS)
        threads.start(self._watch, name="watch", failed=threads.end_process, say=self._say)
        running = loop.create_task(server.serve(sockets=[self._listener]))
        while not server.started and not running.done():
            await asyncio.sleep(0.01)
        self._listener.listen(_BACKLOG)
        self._metrics.ready.set(1)
        self._announce(ready)
        stopping = loop.create_task(asked_to_end.wait())
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        await self._drain()
        server.should_exit = True
        await running
        return self._signals[0] if self._signals else signal.SIGTERM

    def _announce(self, ready: Callable[[Started], None]) -> None:
        generation = self.batcher.generation
        port = self._listener.getsockname()[1]
        url = f"http://{listening.shown(self._settings.host)}:{port}"
        self._say(
            f"serving {generation.version.title} ({generation.model.run_by}) at {url}"
            f"/v1/classify (page: {url}/; Ctrl-C ends it)"
        )
        has_tokens = self.state.tokens is not None
        if warning := listening.reached_by_others(self._settings.host, has_tokens):
            self._say(warning)
        ready(
            Started(
                url=url, port=port, identity=generation.identity,
                framework=generation.model.framework, follows=self.reloader is not None,
            )
        )  # fmt: skip

    def _watch(self) -> None:
        """End the process if a computing thread hangs, since no thread can be ended from outside.

        Raises:
            ModelError: texts wait, and for twice a request's longest time none was computed.
        """
        while self._loop is not None and self.state.alive:
            time.sleep(_WATCH_SECONDS)
        if self._loop is not None:
            raise ModelError(
                "the model does not answer, so the process ends and can be started again",
                where=self.batcher.generation.version.path,
                got=f"no text computed for {self.batcher.stalled_seconds:.0f} s",
            )

    async def _drain(self) -> None:
        """Take no more requests, and wait for the running ones, at most for the grace."""
        self.state.draining = True
        self._metrics.ready.set(0)
        loop = asyncio.get_running_loop()
        until = loop.time() + GRACE_SECONDS
        if self.state.running:
            self._say(f"ending after {self.state.running} running requests")
        while self.state.running and loop.time() < until:
            await asyncio.sleep(0.02)
        if self.state.running:
            self._say(f"the grace period is over: {self.state.running} requests are refused")
        for answered in self.state.waiting:
            if not answered.done():  # its request may not have come to its answer yet
                answered.set_result(None)

    def _on_signal(self, number: int, asked_to_end: asyncio.Event) -> None:
        if self._signals:  # the second signal ends the process at once
            self._say("ended at once")
            sys.stderr.flush()
            os._exit(128 + number)
        self._signals.append(number)
        asked_to_end.set()

    def _call_soon(self, function: Callable[[], None]) -> None:
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(function)

    def _answered(self, answers: list[tuple[Any, Any, Any, Any]]) -> None:
        try:
            self._drift.add(answers)
        except Exception as error:  # noqa: BLE001 - a defect of the profile must not stop answers
            self._drift.give_up(error)


def _raise_descriptors() -> None:
    """Allow this process as many descriptors as all connections need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < target:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))


def _uvicorn(config: Any) -> Any:
    """Make uvicorn's server, without its handlers of signals."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return Server(config)
