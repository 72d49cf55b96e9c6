"""The server's page, and the bodies that /openapi.json describes."""

from __future__ import annotations

import json
import os
import shlex
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from starlette.responses import HTMLResponse, Response

from howdah.pages.page import render
from howdah.serving.compute.generation import Generation
from howdah.serving.http.state import MAX_BYTES, State


def _body(schema: dict[str, Any], example: Any) -> dict[str, Any]:
    media = {"schema": schema, "example": example}
    return {"requestBody": {"required": True, "content": {"application/json": media}}}


_EXAMPLE = "The parcel has not arrived."
_TEXT = {
    "oneOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2},
    ]
}
PLAIN = _body(
    {
        "type": "object",
        "properties": {
            "text": _TEXT,
            "texts": {"type": "array", "items": _TEXT, "minItems": 1},
            "key": {"type": "string", "minLength": 1},
        },
        "oneOf": [{"required": ["text"]}, {"required": ["texts"]}],
    },
    {"texts": [_EXAMPLE]},
)
TEI = _body(
    {
        "type": "object",
        "properties": {
            "inputs": {"oneOf": [{"type": "string"}, {"type": "array"}]},
            "truncate": {"type": "boolean"},
            "raw_scores": {"type": "boolean", "enum": [False]},
            "parameters": {"type": "object"},
        },
        "required": ["inputs"],
    },
    {"inputs": _EXAMPLE},
)
_TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES", "data": [_EXAMPLE]}
OIP = _body({"type": "object", "required": ["inputs"]}, {"inputs": [_TENSOR]})

_CODES = (
    (400, "the body is not JSON"), (401, "no valid token"),
    (403, "the request names another host, or comes from another site"),
    (404, "no such path, model or version"), (405, "the path does not accept this method"),
    (408, "the request did not arrive in time"),
    (413, "too many bytes, texts or elements"), (415, "the body is compressed"),
    (422, "the JSON has the wrong shape: `where` names the field"),
    (431, "the head is too large"), (429, "the queue is full: retry after Retry-After seconds"),
    (500, "an error in the server"),
    (503, "the server is ending, or a replica was lost"), (504, "not answered in time"),
)  # fmt: skip


_ASKS = "connect-src 'self'"
"""What the page may do besides: ask the server that it came from."""
_KINDS = {
    "single_label": "gives each text one label",
    "multi_label": "gives each text any number of labels",
    "regression": "gives each text a number",
}
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}


def page(state: State, address: str) -> str:
    """Render the page: a text box, the last hour, the models and example calls.

    Args:
        address: the server's address as the client wrote it: http://127.0.0.1:8000.
    """
    models, hour = state.compute.generations, state.last_hour.hour()
    first = models[0]
    return render(
        __package__, "page.html.j2", script=_script(), allow=_ASKS,
        needs_token=state.tokens is not None, models=models, share=state.share, kinds=_KINDS,
        sides=("First text", "Second text") if first.model.pairs else ("Text",),
        hour=hour,
        process=os.getpid(), calls=_calls(first, address), codes=_CODES, settings=state.settings,
        most_bytes=MAX_BYTES,
    )  # fmt: skip


@cache
def login() -> str:
    """Render the page without anything of the model: a field for the token."""
    return render(__package__, "page.html.j2", script=_script(), allow=_ASKS, models=())


def html(text: str) -> Response:
    """Return a page that no other site may frame and that no cache keeps."""
    return HTMLResponse(text, headers=_HEADERS)


def _script() -> str:
    return files(__package__).joinpath("page.js").read_text("utf-8")


def _calls(generation: Generation, address: str) -> list[str]:
    """Return a command for each way to ask, about a text that names one of the model's labels."""
    labels = generation.outputs.labels
    topic = f" about {labels[0]}" if generation.outputs.has_scores and labels else ""
    text = f"a message{topic}"
    one: Any = [text, "another one"] if generation.model.pairs else text
    tensor = {**_TENSOR, "data": [one]}
    if generation.model.pairs:
        tensor |= {"shape": [1, 2], "data": one}
    examples = {
        "/v1/classify": {"text": one},
        "/predict": {"inputs": one},
        f"/v2/models/{quote(generation.name)}/infer": {"inputs": [tensor]},
    }
    return [
        f"curl -s {shlex.quote(address + path)} -d {shlex.quote(json.dumps(body))}"
        for path, body in examples.items()
    ]
