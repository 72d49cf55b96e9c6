"""The processes of the Ray Serve deployment: replicas that hold a model, and what routes to them.

Nothing here imports Ray at module level: Ray's workers import this module by its name. Between its
processes Ray pickles arguments: they are plain strings, lists and dicts.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from howdah.serving.deployment.requests import (
    MOST_BYTES,
    BadRequest,
    Overloaded,
    Refusal,
    TooLarge,
    UnknownRoute,
    WrongHost,
    WrongMethod,
    as_json,
    parse,
    refusal_body,
    rows_of,
)
from howdah.serving.deployment.split import choose

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

PREDICT, HEALTH = "/predict", "/health"
_READ_BYTES = 64 * 2**20
_ROUTES = {PREDICT: "POST", HEALTH: "GET"}


class Classifier:
    """A replica: one opened model.

    Args:
        path: its export.
        threads: compute threads.
        framework: that runs it; None: what it was trained with.
    """

    def __init__(self, path: str, threads: int, framework: str | None = None) -> None:
        from howdah.models.opened.opened import open_model

        self._served = open_model(path, framework=framework, threads=threads)
        self._served.require("text", where="Ray Serve", remedy="use `howdah predict` for images")
        # Ray calls methods in several threads; the tokenizer's truncation is a state of it.
        self._lock = threading.Lock()

    def classify(self, texts: list[str | list[str]]) -> dict[str, Any]:
        """{run_id, predictions} of texts, in their order."""
        from howdah.serving.prediction.classify import classify, outputs_of

        rows = rows_of(texts)
        with self._lock:
            found = classify(self._served, rows)
        answers = as_json(found, outputs_of(self._served))
        return {"run_id": self._served.run_id, "predictions": answers}


class Router:
    """Reads requests, chooses the model, and answers; holds no model itself.

    Args:
        variants: {name, version, run_id} of each model, for its answers.
        share: of the second one; 0: there is none.
        hosts: what requests may name as their host; None: anything. A server on loopback knows its
            names: another one is a page's that has been bound to it (DNS rebinding).
        handles: Ray Serve's handles of the Classifiers, one for each variant.
    """

    def __init__(
        self,
        variants: list[dict[str, Any]],
        share: float,
        hosts: list[str] | None,
        *handles: Any,
    ) -> None:
        self._variants, self._share, self._hosts, self._handles = variants, share, hosts, handles
        self._salt = "|".join(sorted({str(one["name"]) for one in variants}))

    async def __call__(self, request: Request) -> Response:
        """Answer one HTTP request."""
        from starlette.requests import ClientDisconnect
        from starlette.responses import JSONResponse

        try:
            return JSONResponse(await self._answer(request))
        except ClientDisconnect:  # no process reads this
            return JSONResponse({}, status_code=BadRequest.status)
        except Refusal as error:
            headers = {"Retry-After": "1"} if error.status == Overloaded.status else {}
            if error.status == WrongMethod.status:
                headers["Allow"] = error.expected or ""
            return JSONResponse(refusal_body(error), status_code=error.status, headers=headers)

    async def _answer(self, request: Request) -> dict[str, Any]:
        if self._hosts is not None and request.url.hostname not in self._hosts:
            raise WrongHost(
                "requests to this server name another host",
                expected=", ".join(self._hosts),
                got=str(request.url.hostname),
            )
        path = request.url.path.rstrip("/") or "/"
        method = _ROUTES.get(path)
        if method is None:
            raise UnknownRoute(
                "there is no such path",
                expected=", ".join(f"{name} {at}" for at, name in _ROUTES.items()),
                got=path,
            )
        if request.method not in (method, "HEAD" if method == "GET" else method):
            raise WrongMethod(
                f"{path} does not accept this method", expected=method, got=request.method
            )
        if path == HEALTH:
            return {"status": "ok", "models": self._variants, "share": self._share}
        asked = parse(await _body_of(request))
        number = choose(asked.key, self._share, self._salt) if self._share else 0
        answer = await self._classified(number, list(asked.texts))
        variant = self._variants[number]
        out = {"model": variant["name"], "version": variant["version"], "run_id": answer["run_id"]}
        if asked.is_single:
            return out | {"prediction": answer["predictions"][0]}
        return out | {"predictions": answer["predictions"]}

    async def _classified(self, number: int, texts: list[str]) -> dict[str, Any]:
        from ray.exceptions import RayError
        from ray.serve.exceptions import BackPressureError

        try:
            return await self._handles[number].classify.remote(texts)
        except BackPressureError:
            raise Overloaded(
                "too many requests are waiting", remedy="ask again, later; or --queue, --replicas"
            ) from None
        except RayError as error:
            # A replica that was killed is replaced; its log has more than an answer may have.
            raise Overloaded(
                "the model did not answer", got=type(error).__name__, remedy="ask again"
            ) from None


async def _body_of(request: Request) -> bytes:
    """The request's body.

    Raises:
        TooLarge: it is longer than MOST_BYTES. What follows is read, up to a limit, and dropped: a
            client that is still sending when the connection ends does not see the answer.
    """
    parts: list[bytes] = []
    length = 0
    async for part in request.stream():
        length += len(part)
        if length <= MOST_BYTES:
            parts.append(part)
        elif length > _READ_BYTES:
            break
        else:
            parts.clear()
    if length > MOST_BYTES:
        raise TooLarge(
            "the body is too large",
            expected=f"at most {MOST_BYTES:,} bytes",
            got=f"{length:,} bytes or more",
            remedy="send fewer texts at a time; `howdah predict` classifies files",
        )
    return b"".join(parts)
