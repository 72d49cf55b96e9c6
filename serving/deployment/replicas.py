"""The processes of the Ray Serve deployment: replicas that hold a model, and a router to them.

Nothing here imports Ray at module level, since Ray's workers import this module by its name. Ray
pickles arguments between its processes, so that they are plain strings, lists and dicts.
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
        path: the model's export.
        threads: number of compute threads.
        framework: framework that runs the model; None: the one that it was trained with.
    """

    def __init__(self, path: str, threads: int, framework: str | None = None) -> None:
        from howdah.models.opened.opened import open_model

        self._served = open_model(path, framework=framework, threads=threads)
        self._served.require("text", where="Ray Serve", remedy="use `howdah predict` for images")
        # Ray calls methods in several threads, and the tokenizer's truncation is shared state.
        self._lock = threading.Lock()

    def classify(self, texts: list[str | list[str]]) -> dict[str, Any]:
        """Return {run_id, predictions} of texts, in their order."""
        from howdah.serving.prediction.classify import classify, outputs_of

        rows = rows_of(texts)
        with self._lock:
            predictions = classify(self._served, rows)
        answers = as_json(predictions, outputs_of(self._served))
        return {"run_id": self._served.run_id, "predictions": answers}


class Router:
    """Reads requests, chooses the model, and answers; holds no model itself.

    Args:
        variants: {name, version, run_id} of each model, for its answers.
        share: share of the requests that the second model answers; 0 if there is one model.
        hosts: host names that requests may have; None: any (`listening.host_names`).
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
        except ClientDisconnect:  # nothing reads this
            return JSONResponse({}, status_code=BadRequest.status)
        except Refusal as error:
            headers = {"Retry-After": "1"} if error.status == Overloaded.status else {}
            if error.status == WrongMethod.status:
                headers["Allow"] = error.expected or ""
            return JSONResponse(refusal_body(error), status_code=error.status, headers=headers)

    async def _answer(self, request: Request) -> dict[str, Any]:
        if self._hosts is not None and request.url.hostname not in self._hosts:
            raise WrongHost(
                "the request names another host",
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
        parsed = parse(await _body_of(request))
        number = choose(parsed.key, self._share, self._salt) if self._share else 0
        answer = await self._classified(number, list(parsed.texts))
        variant = self._variants[number]
        out = {"model": variant["name"], "version": variant["version"], "run_id": answer["run_id"]}
        if parsed.is_single:
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
            # Ray replaces a killed replica. Its log has details that a client must not see.
            raise Overloaded(
                "the model did not answer", got=type(error).__name__, remedy="ask again"
            ) from None


async def _body_of(request: Request) -> bytes:
    """Read the request's body.

    Raises:
        TooLarge: it is longer than MOST_BYTES. The rest is read, up to a limit, and dropped, since
            a client that is still sending when the connection ends does not see the answer.
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
