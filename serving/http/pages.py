"""The server's page /docs, and the bodies that /openapi.json describes."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from typing import Any

from howdah.config.options.serve import ServeSection
from howdah.serving.compute.generation import Generation
from howdah.serving.http.state import MAX_BYTES


def _body(schema: dict[str, Any], example: Any) -> dict[str, Any]:
    media = {"schema": schema, "example": example}
    return {"requestBody": {"required": True, "content": {"application/json": media}}}


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
    {"texts": ["stocks fell sharply"]},
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
    {"inputs": "stocks fell sharply"},
)
_TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["stocks fell sharply"]}
OIP = _body({"type": "object", "required": ["inputs"]}, {"inputs": [_TENSOR]})

_CODES = (
    (400, "the body is not JSON"), (401, "no token"), (403, "another host's name, or site"),
    (404, "no such path, model or version"), (405, "another method"),
    (408, "the request did not arrive in time"),
    (413, "too many bytes, texts or elements"), (415, "a compressed body"),
    (422, "JSON of another shape: `where` names the field"),
    (431, "a head that is too large"), (429, "the queue is full: Retry-After"), (500, "a defect"),
    (503, "the server is ending, or a replica was lost"), (504, "not answered in time"),
)  # fmt: skip


def docs(generations: Sequence[Generation], settings: ServeSection) -> str:
    """Render the page: the models that answer, and example calls; it loads nothing else."""
    generation = generations[0]
    name = html.escape(generation.name)
    examples = {
        "/v1/classify": {"texts": ["stocks fell sharply"]},
        "/predict": {"inputs": "stocks fell sharply"},
        f"/v2/models/{generation.name}/infer": {"inputs": [_TENSOR]},
    }
    calls = "".join(
        f"<pre>curl -s http://HOST:PORT{html.escape(path)} "
        f"-d '{html.escape(json.dumps(body))}'</pre>"
        for path, body in examples.items()
    )
    rows = "".join(f"<tr><td>{code}<td>{html.escape(text)}" for code, text in _CODES)
    heads = "".join(_head(one) for one in generations)
    return f"""<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>{name}</title>
<style>body{{font:16px/1.5 sans-serif;max-width:50em;margin:2em auto;padding:0 1em}}
pre{{background:#8881;padding:.6em;overflow:auto}}td{{padding:.1em 1em .1em 0}}
:root{{color-scheme:light dark}}</style>
{heads}
<h2>Ask</h2>{calls}
<p>At most {settings.max_texts} texts and {MAX_BYTES:,} bytes a request;
<code>X-Timeout-Ms</code> bounds the wait for the answer. With a token:
<code>Authorization: Bearer ...</code>.</p>
<h2>Refusals</h2><p>JSON: error, error_type, what, where, expected, got, remedy.</p>
<table>{rows}</table>
<p><a href="/openapi.json">/openapi.json</a> <a href="/metrics">/metrics</a>
<a href="/v2/models/{name}">/v2/models/{name}</a></p></html>"""


def _head(generation: Generation) -> str:
    version = "" if generation.version.number is None else f", version {generation.version.number}"
    labels = ", ".join(generation.outputs.labels[:50])
    return f"""<h1>{html.escape(generation.name)}{version}</h1>
<p>run {html.escape(generation.model.run_id)}; {html.escape(generation.model.task)};
labels: {html.escape(labels)}</p>"""
