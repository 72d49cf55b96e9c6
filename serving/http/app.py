"""The server's paths, as an ASGI application: who may ask, what is read, what is answered."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from howdah import __version__
from howdah.config.options.serve import ServeSection
from serving.compute.batcher import Batcher, Work
from serving.compute.metrics import Metrics
from serving.compute.refusals import (
    Broken,
    DeadlinePassed,
    Draining,
    Gone,
    NoToken,
    QueueFull,
    UnknownModel,
)
from serving.http import faces, pages
from serving.http.reading import Held, deadline_ms, header, read_body
from training.deployment.requests import Refusal, UnknownRoute, WrongHost, WrongMethod, refusal_body
from training.prediction.classify import has_no_text

__all__ = ["Front", "State", "build"]

_HELD_BYTES = 64 * 2**20
_OPEN = ("/v2/health/live", "/v2/health/ready", "/health")
"""Paths that need no token: what a load balancer or a kubelet asks."""
_FACES = (
    ("/v1/classify", "classify"), ("/predict", "predict"), ("/v2/health", "health"),
    ("/v2", "oip"), ("/health", "health"), ("/metrics", "metrics"), ("/docs", "docs"),
    ("/openapi.json", "docs"),
)  # fmt: skip


@dataclass(eq=False)
class State:
    """What the paths share; only the event loop changes it."""

    batcher: Batcher
    metrics: Metrics
    settings: ServeSection
    hosts: list[str] | None
    """What a request may name as its host; None: anything."""
    tokens: Sequence[bytes] = ()
    """Bearer tokens; none: no request needs one."""
    draining: bool = False
    """Requests are not taken any more."""
    waiting: set[asyncio.Future[None]] = field(default_factory=set)
    """Of each request whose texts wait or are computed; set before they are: it is refused."""
    say: Callable[[str], None] = lambda line: None
    before_metrics: Callable[[], None] = lambda: None
    """Called before /metrics is written."""
    unpredicted: Callable[[int, int], None] = lambda empty, errors: None
    """Takes how many texts of a request were empty, and how many had another error."""
    running: int = 0
    """Requests that are read, wait or are computed."""
    held: Held = field(default_factory=lambda: Held(most=_HELD_BYTES))


def build(state: State) -> FastAPI:
    """The application, without `Front`."""
    app = FastAPI(
        title="Howdah", version=__version__, docs_url=None, redoc_url=None,
        description="Text classification by a published model.",
    )  # fmt: skip

    def add(path: str, call: Callable[..., Awaitable[Response]], method: str, **more: Any) -> None:
        app.add_api_route(path, call, methods=[method], response_model=None, **more)

    async def classify(request: Request) -> Response:
        return await _ask(state, request, faces.plain)

    async def predict(request: Request) -> Response:
        return await _ask(state, request, faces.tei)

    async def infer(request: Request, name: str, version: str | None = None) -> Response:
        _require_model(state, name, version)
        pairs = state.batcher.generation.model.pairs

        def parse(body: bytes, most_texts: int, most_bytes: int) -> faces.Question:
            return faces.oip(body, most_texts, most_bytes, pairs)

        return await _ask(state, request, parse)

    async def about(name: str, version: str | None = None) -> Response:
        _require_model(state, name, version)
        return _json(faces.metadata(state.batcher.generation))

    async def model_ready(name: str, version: str | None = None) -> Response:
        _require_model(state, name, version)
        return _ready(state)

    async def server() -> Response:
        return _json({"name": "howdah", "version": __version__, "extensions": []})

    async def live() -> Response:
        return _json({"live": True})

    async def ready() -> Response:
        return _ready(state)

    async def health() -> Response:
        models = [state.batcher.generation.identity]
        if state.draining:
            return _json({"status": "ending", "models": models}, 503)
        return _json({"status": "ok", "models": models})

    async def metrics(request: Request) -> Response:
        state.before_metrics()
        text, media = state.metrics.text(request.headers.get("accept", ""))
        return Response(text, media_type=None, headers={"Content-Type": media})

    async def docs() -> Response:
        return HTMLResponse(pages.docs(state.batcher.generation, state.settings))

    add("/v1/classify", classify, "POST", summary="Classify texts",
        openapi_extra=pages.PLAIN)  # fmt: skip
    add("/predict", predict, "POST", summary="As Text Embeddings Inference",
        openapi_extra=pages.TEI)  # fmt: skip
    add("/v2", server, "GET", summary="The server")
    add("/v2/health/live", live, "GET", summary="200 while the process answers")
    add("/v2/health/ready", ready, "GET", summary="200 while requests are taken, else 503")
    for below in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        add(below, about, "GET", summary="The model's inputs, outputs and labels")
        add(f"{below}/ready", model_ready, "GET", summary="200 while the model answers")
        add(f"{below}/infer", infer, "POST", summary="Open Inference Protocol, JSON data",
            openapi_extra=pages.OIP)  # fmt: skip
    add("/health", health, "GET", summary="Which model answers")
    add("/metrics", metrics, "GET", summary="For Prometheus")
    add("/docs", docs, "GET", summary="A page for people", include_in_schema=False)

    async def refused(request: Request, error: Exception) -> Response:
        return _refusal(error)

    async def unrouted(request: Request, error: Exception) -> Response:
        return _refusal(_of_routing(request, error))

    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(HTTPException, unrouted)
    return app


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    data = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(data.encode("utf-8", "replace"), status, headers, media_type="application/json")


def _ready(state: State) -> Response:
    is_ready = not state.draining
    return _json({"ready": is_ready}, 200 if is_ready else 503)


def _require_model(state: State, name: str, version: str | None) -> None:
    """Raise UnknownModel for another model, or a version that is not loaded."""
    here = state.batcher.generation
    loaded = "" if here.version is None else str(here.version)
    if name != here.name or (version is not None and version != loaded):
        known = here.name + (f", version {loaded}" if loaded else "")
        raise UnknownModel(
            "that model is not loaded", expected=known,
            got=f"{name[:80]}" + (f", version {version[:20]}" if version else ""),
        )  # fmt: skip


def _of_routing(request: Request, error: Any) -> Refusal:
    path = request.url.path[:200]
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        return WrongMethod(f"{path} takes another method", expected=allowed, got=request.method)
    return UnknownRoute("there is no such path", expected="one of /docs", got=path)


def _refusal(error: Any) -> Response:
    headers = {}
    if isinstance(error, QueueFull):
        headers["Retry-After"] = str(error.seconds)
    elif error.status == 503:
        headers["Retry-After"] = "1"
    elif error.status == WrongMethod.status:
        headers["Allow"] = error.expected or ""
    elif error.status == NoToken.status:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status in (408, 413, 503):
        headers["Connection"] = "close"  # the rest of the request may still be coming
    return _json(refusal_body(error), error.status, headers)


# --------------------------------------------------------------------------- one request
async def _ask(
    state: State, request: Request, parse: Callable[[bytes, int, int], faces.Question]
) -> Response:
    settings = state.settings
    began = request.scope["howdah.began"]
    limit = settings.request_seconds
    given = deadline_ms(request.scope)
    if given is not None:
        limit = min(limit, given / 1000)
    if state.draining:
        raise Draining("the server is ending", remedy="ask another one")
    body = await read_body(
        request.scope, request.receive, most=settings.max_bytes, seconds=settings.read_seconds,
        held=state.held,
    )  # fmt: skip
    size = len(body)
    try:
        question = parse(body, settings.max_texts, settings.max_bytes)
        del body
        work = Work(question.rows)
        await _classified(state, work, request, began + limit, given)
        _count(state, work)
        answer = question.answer(work.generation, work.predictions)
        return _json(answer, headers=_names(work))
    finally:
        state.held.bytes -= size


def _count(state: State, work: Work) -> None:
    for one in work.predictions:
        state.metrics.prediction(one, work.generation)
    wrong = [one.error for one in work.predictions if one.scores is None]
    if wrong:
        empty = sum(map(has_no_text, wrong))
        state.unpredicted(empty, len(wrong) - empty)


def _names(work: Work) -> dict[str, str]:
    """Headers that name the model, for formats whose body has no place for it."""
    return {
        f"X-Howdah-{name.title().replace('_', '-')}": quote(str(value), safe="/ :=.,@+")
        for name, value in work.generation.identity.items()
        if value is not None
    }


async def _classified(
    state: State, work: Work, request: Request, deadline: float, given: float | None
) -> None:
    """Wait until all texts have predictions.

    Raises:
        QueueFull, DeadlinePassed, Gone, Draining, Broken: they have not.
    """
    loop = asyncio.get_running_loop()
    answered = loop.create_future()
    work.done = lambda: answered.done() or answered.set_result(None)
    state.batcher.submit(work)
    state.waiting.add(answered)
    gone = loop.create_task(_disconnected(request.receive))
    try:
        left = deadline - time.monotonic()
        await asyncio.wait(
            {answered, gone}, timeout=max(0.0, left), return_when=asyncio.FIRST_COMPLETED
        )
    except asyncio.CancelledError:  # the grace is over: uvicorn ends its requests
        state.batcher.drop(work)
        raise
    finally:
        gone.cancel()
        state.waiting.discard(answered)
    if work.failure is not None:
        raise work.failure
    if work.generation is not None and None not in work.predictions:
        return
    state.batcher.drop(work)
    if answered.done():
        raise Draining("the server is ending", remedy="ask another one")
    if gone.done() and not gone.cancelled():
        state.metrics.errors.labels("client gone").inc()
        raise Gone("the client has closed the connection")
    state.metrics.errors.labels("deadline passed").inc()
    seconds = state.settings.request_seconds
    limit = f"{given:g} ms (X-Timeout-Ms)" if given else f"{seconds:g} s"
    raise DeadlinePassed(
        "the answer was not there in time", expected=f"within {limit}",
        remedy="give more time, send fewer texts, or start more servers",
    )  # fmt: skip


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# ------------------------------------------------------------------------------ every request
class Front:
    """Around the application: the request's host and token, what is counted, unexpected errors.

    Args:
        app: the application.
        state: what the paths share.
    """

    def __init__(self, app: Any, state: State) -> None:
        self._app, self._state = app, state

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """One connection's request (ASGI 3)."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state, began, code = self._state, time.monotonic(), 0
        scope["howdah.began"] = began
        face = next((name for at, name in _FACES if scope["path"].startswith(at)), "other")

        async def counted(message: dict[str, Any]) -> None:
            nonlocal code
            if message["type"] == "http.response.start":
                code = message["status"]
            await send(message)

        state.running += 1
        try:
            self._admit(scope)
            await self._app(scope, receive, counted)
        except Refusal as error:
            await _refusal(error)(scope, receive, counted)
        except asyncio.CancelledError:
            if not code:
                error = Draining("the server is ending", remedy="ask another one")
                await _refusal(error)(scope, receive, counted)
        except Exception as error:  # noqa: BLE001 - a defect: reported without what the user sent
            frame = traceback.extract_tb(error.__traceback__)[-1]
            state.say(
                f"a request failed: {type(error).__name__} in {frame.filename}:{frame.lineno}"
            )
            if not code:
                broken = Broken("the server failed on this request", got=type(error).__name__)
                await _refusal(broken)(scope, receive, counted)
        finally:
            state.running -= 1
            state.metrics.requests.labels(face, str(code)).inc()
            if face in ("classify", "predict", "oip"):
                state.metrics.latency.labels(face).observe(time.monotonic() - began)

    def _admit(self, scope: dict[str, Any]) -> None:
        """Refuse another host's requests, and those without a token.

        Raises:
            WrongHost, NoToken: it is refused.
        """
        state = self._state
        if state.hosts is not None:
            named = _host(header(scope, b"host") or b"")
            if named not in state.hosts:
                raise WrongHost(
                    "requests to this server name another host",
                    expected=", ".join(state.hosts), got=named[:80],
                )  # fmt: skip
        if state.tokens and scope["path"] not in _OPEN:
            kind, _, token = (header(scope, b"authorization") or b"").partition(b" ")
            # All are compared: the time does not say which one was near.
            right = [hmac.compare_digest(token.strip(), known) for known in state.tokens]
            if kind.lower() != b"bearer" or not any(right):
                raise NoToken(
                    "the request has no token of this server",
                    where="Authorization", expected="Bearer and a token of serve.token_file",
                    got="none" if not kind else "another one",
                )  # fmt: skip


def _host(value: bytes) -> str:
    """A Host header without its port.

    >>> _host(b"localhost:8000"), _host(b"[::1]:80"), _host(b"evil.example")
    ('localhost', '::1', 'evil.example')
    """
    text = value.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.rpartition(":")[0] if ":" in text else text
