"""Answers as JSON: predictions, and refusals with the headers that belong to them."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response

from howdah.serving.compute.refusals import (
    BadHead,
    NoToken,
    QueueFull,
    Refusal,
    WrongMethod,
    refusal_body,
)

_CLOSING = (401, 403, 404, 408, 413, 431, 503)
"""The connection ends after these: the rest of the request may still be coming, or the client is
not authorised and must not hold a connection that others need."""


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return JSON in UTF-8. A lone surrogate, which has no UTF-8 form, becomes a question mark."""
    data = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(data.encode("utf-8", "replace"), status, headers, media_type="application/json")


def refused(error: Refusal) -> Response:
    """Return the answer to a refused request."""
    headers = {}
    if isinstance(error, QueueFull):
        headers["Retry-After"] = str(error.seconds)
    elif error.status == 503:
        headers["Retry-After"] = "1"
    elif error.status == WrongMethod.status:
        headers["Allow"] = error.expected or ""
    elif error.status == NoToken.status:
        headers["WWW-Authenticate"] = "Bearer"
    if error.status in _CLOSING or isinstance(error, BadHead):
        headers["Connection"] = "close"
    return json_response(refusal_body(error), error.status, headers)
