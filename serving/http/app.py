"""The server's paths, as an ASGI application."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import quote

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from howdah import __version__
from howdah.serving.compute.batcher import Work
from howdah.serving.compute.generation import Generation
from howdah.serving.compute.refusals import (
    DeadlinePassed,
    Draining,
    Gone,
    Refusal,
    UnknownModel,
    UnknownRoute,
    WrongMethod,
)
from howdah.serving.http import faces, oip, pages
from howdah.serving.http.answers import json_response, refused
from howdah.serving.http.front import asks_for_login
from howdah.serving.http.question import Question
from howdah.serving.http.reading import deadline_ms, header, read_body
from howdah.serving.http.state import MAX_BYTES, READ_SECONDS, REQUEST_SECONDS, State
from howdah.serving.prediction.rows import EMPTY


def build(state: State) -> FastAPI:
    """Build the application, without `Front`."""
    app = FastAPI(
        title="Howdah", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False,
        description="Text classification by a published model.",
    )  # fmt: skip

    def add(path: str, call: Callable[..., Awaitable[Response]], method: str, **more: Any) -> None:
        app.add_api_route(path, call, methods=[method], response_model=None, **more)
        if method == "GET":  # probes and load balancers ask by HEAD
            app.add_api_route(
                path, call, methods=["HEAD"], response_model=None, include_in_schema=False
            )

    settings = state.settings

    async def classify(request: Request) -> Response:
        return await _ask(state, request, lambda body: faces.plain(body, settings.max_texts))

    async def predict(request: Request) -> Response:
        return await _ask(state, request, lambda body: faces.tei(body, settings.max_texts))

    async def infer(request: Request, name: str, version: str | None = None) -> Response:
        models = _require_model(state, name, version)
        pairs = models[0].model.pairs
        json_bytes = header(request.scope, oip.HEADER.lower().encode())
        return await _ask(
            state, request,
            lambda body: oip.infer(body, settings.max_texts, pairs=pairs, json_bytes=json_bytes),
            models,
        )  # fmt: skip

    async def about(name: str, version: str | None = None) -> Response:
        return json_response(oip.metadata(_require_model(state, name, version)))

    async def model_ready(name: str, version: str | None = None) -> Response:
        _require_model(state, name, version)
        return _ready(state)

    async def server() -> Response:
        return json_response(
            {"name": "howdah", "version": __version__, "extensions": oip.EXTENSIONS}
        )

    async def live() -> Response:
        return json_response({"live": state.alive}, 200 if state.alive else 503)

    async def ready() -> Response:
        return _ready(state)

    async def health() -> Response:
        about: dict[str, Any] = {"models": [one.identity for one in state.compute.generations]}
        if state.share:
            about["share"] = state.share
        if state.draining:
            return json_response({"status": "ending", **about}, 503)
        if not state.ready:
            return json_response({"status": "stalled", **about}, 503)
        return json_response({"status": "ok", **about})

    async def metrics(request: Request) -> Response:
        state.before_metrics()
        state.metrics.ready.set(state.ready)
        text, media = state.metrics.text(request.headers.get("accept", ""))
        return Response(text, media_type=None, headers={"Content-Type": media})

    async def page(request: Request) -> Response:
        if state.tokens is not None and asks_for_login(request.scope):
            return pages.html(pages.login())
        host = header(request.scope, b"host") or b""
        address = f"{request.url.scheme}://{host.decode('latin-1')}"
        return pages.html(pages.page(state, address))

    add("/v1/classify", classify, "POST", summary="Classify texts", openapi_extra=pages.PLAIN)
    add("/predict", predict, "POST", summary="Text Embeddings Inference's format",
        openapi_extra=pages.TEI)  # fmt: skip
    add("/", predict, "POST", summary="The same as /predict, for clients that only have an address",
        openapi_extra=pages.TEI)  # fmt: skip
    add("/v2", server, "GET", summary="The server")
    add("/v2/health/live", live, "GET", summary="200 while the process answers")
    add("/v2/health/ready", ready, "GET", summary="200 while requests are taken, else 503")
    for below in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        add(below, about, "GET", summary="The model's inputs, outputs and labels")
        add(f"{below}/ready", model_ready, "GET", summary="200 while the model answers")
        add(f"{below}/infer", infer, "POST", summary="Open Inference Protocol, JSON or binary data",
            openapi_extra=pages.OIP)  # fmt: skip
    add("/health", health, "GET", summary="Which model answers")
    add("/metrics", metrics, "GET", summary="For Prometheus")
    add("/", page, "GET", summary="A page that classifies a text", include_in_schema=False)

    async def by_refusal(request: Request, error: Exception) -> Response:
        return refused(error)

    async def unrouted(request: Request, error: Exception) -> Response:
        return refused(_of_routing(request, error))

    app.add_exception_handler(Refusal, by_refusal)
    app.add_exception_handler(HTTPException, unrouted)
    return app


def _ready(state: State) -> Response:
    return json_response({"ready": state.ready}, 200 if state.ready else 503)


def _require_model(state: State, name: str, version: str | None) -> list[Generation]:
    """Return the loaded models of this name, and of this version if the path names one.

    Raises:
        UnknownModel: there is none.
    """
    loaded = [(one, str(one.version.number or "")) for one in state.compute.generations]
    models = [one for one, number in loaded if one.name == name and version in (None, number)]
    if not models:
        raise UnknownModel(
            "this model is not loaded",
            expected="; ".join(
                one.name + (f", version {number}" if number else "") for one, number in loaded
            ),
            got=f"{name[:80]}" + (f", version {version[:20]}" if version else ""),
        )
    return models


def _of_routing(request: Request, error: Any) -> Refusal:
    path = request.url.path[:200]
    if error.status_code == 405:
        # Each method has a route of its own, of which the error names the first one's alone.
        routes = [r for r in request.app.routes if r.path_regex.match(request.url.path)]
        allowed = sorted({method for route in routes for method in route.methods})
        return WrongMethod(
            f"{path} does not accept this method",
            expected=", ".join(allowed),
            got=request.method[:20],
        )
    return UnknownRoute(
        "there is no such path", expected="a path that the page at / lists", got=path
    )


# --------------------------------------------------------------------------- one request
async def _ask(
    state: State,
    request: Request,
    parse: Callable[[bytes], Question],
    models: Sequence[Generation] = (),
) -> Response:
    """Read a request's body, and answer it.

    Args:
        models: those that the path names; none: every loaded one may answer.
    """
    began = request.scope["howdah.began"]
    limit = REQUEST_SECONDS
    deadline_header = deadline_ms(request.scope)
    if deadline_header is not None:
        limit = min(limit, deadline_header / 1000)
    if state.draining:
        raise Draining("the server is ending", remedy="send the request to another server")
    body = await read_body(
        request.scope, request.receive, most=MAX_BYTES, seconds=READ_SECONDS, held=state.held
    )
    size = len(body)
    try:
        question = parse(body)
        del body
        # From now on the texts are held, for which Python takes up to four bytes a character.
        held = sum(sys.getsizeof(row.text) for row in question.rows)
        state.held.bytes += held - size
        size = held
        state.held.require_room()
        work = Work(question.rows, key=question.key, candidates=models or state.compute.generations)
        await _classified(state, work, request, began + limit, deadline_header)
        _count(state, work)
        answer = question.answer(work.generation, work.predictions)
        if isinstance(answer, oip.Tensors):
            data, headers = answer.body()
            return Response(data, headers={**_names(work), **headers})
        return json_response(answer, headers=_names(work))
    finally:
        state.held.bytes -= size


def _count(state: State, work: Work) -> None:
    for one in work.predictions:
        state.metrics.prediction(one, work.generation)
    wrong = [one.error for one in work.predictions if one.scores is None]
    if wrong:
        empty = wrong.count(EMPTY)
        state.unpredicted(empty, len(wrong) - empty)


def _names(work: Work) -> dict[str, str]:
    """Return headers that name the model, for formats whose body has no field for it."""
    return {
        f"X-Howdah-{name.title().replace('_', '-')}": quote(str(value), safe="/ :=.,@+")
        for name, value in work.generation.identity.items()
        if value is not None
    }


async def _classified(
    state: State, work: Work, request: Request, deadline: float, deadline_header: float | None
) -> None:
    """Wait until all texts have predictions.

    Raises:
        QueueFull, DeadlinePassed, Gone, Draining, Broken: a text has no prediction.
    """
    left = deadline - time.monotonic()
    if left <= 0:  # reading took all of the time: the client waits no longer
        raise _too_late(state, deadline_header)
    loop = asyncio.get_running_loop()
    answered = loop.create_future()
    work.done = lambda: answered.done() or answered.set_result(None)
    state.compute.submit(work)
    state.waiting.add(answered)
    gone = loop.create_task(_disconnected(request.receive))
    try:
        await asyncio.wait({answered, gone}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:  # the grace is over: uvicorn ends its requests
        state.compute.drop(work)
        raise
    finally:
        gone.cancel()
        state.waiting.discard(answered)
    if work.failure is not None:
        raise work.failure
    if work.generation is not None and None not in work.predictions:
        return
    state.compute.drop(work)
    if answered.done():
        raise Draining("the server is ending", remedy="send the request to another server")
    if gone.done() and not gone.cancelled():
        state.metrics.errors.labels("client gone").inc()
        raise Gone("the client has closed the connection")
    raise _too_late(state, deadline_header)


def _too_late(state: State, deadline_header: float | None) -> DeadlinePassed:
    state.metrics.errors.labels("deadline passed").inc()
    seconds = REQUEST_SECONDS
    limit = f"{deadline_header:g} ms (X-Timeout-Ms)" if deadline_header else f"{seconds:g} s"
    return DeadlinePassed(
        "the texts were not classified in time",
        expected=f"within {limit}",
        remedy="send fewer texts, or start more servers",
    )


async def _disconnected(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
