"""`howdah serve`: a server of our own, here or on YARN, or models behind Ray Serve."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from howdah.cli.common import MODEL_HELP, AsJson, ConfigPath, Overrides, answer, load, say
from howdah.errors import ModelError, UsageError

app = typer.Typer()

_OF_RAY = "With --on ray: "


@app.command()
def serve(
    model: Annotated[str, typer.Option(help=f"{MODEL_HELP}.")],
    action: Annotated[
        str | None, typer.Argument(metavar="[ACTION]", help="With --yarn: status or stop.")
    ] = None,
    yarn: Annotated[
        bool, typer.Option("--yarn", help="As an application that YARN keeps alive.")
    ] = False,
    on: Annotated[
        str | None, typer.Option("--on", help="ray: behind Ray Serve; none: Howdah's own server.")
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (serve.host: 127.0.0.1).")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="0: a free one (serve.port: 8000).")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Compute threads (serve.threads: all cores; Ray: 1).")
    ] = None,
    max_batch_tokens: Annotated[
        int | None, typer.Option(min=1, help="Of one batch, padding included (1024).")
    ] = None,
    max_wait_ms: Annotated[
        float | None, typer.Option(min=0, help="That a batch waits for more texts (2).")
    ] = None,
    max_texts: Annotated[int | None, typer.Option(min=1, help="Of one request (32).")] = None,
    max_bytes: Annotated[str | None, typer.Option(help="Of one request (2 MiB).")] = None,
    max_queue: Annotated[
        int | None, typer.Option(min=1, help="Texts that may wait; more: 429 (512).")
    ] = None,
    shadow: Annotated[
        str | None, typer.Option(help="A challenger (4, v=4 or a path) that gets the same texts.")
    ] = None,
    token_file: Annotated[
        str | None, typer.Option(help="Bearer tokens, one a line; the file is yours alone.")
    ] = None,
    open_to_all: Annotated[
        bool, typer.Option("--open", help="Listen on another address without a token.")
    ] = False,
    other: Annotated[
        str | None,
        typer.Option("--and", help=f"{_OF_RAY}a second model, which gets --share of requests."),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(help=f"{_OF_RAY}of requests, for --and. One `key` always goes to one model."),
    ] = None,
    replicas: Annotated[
        str | None, typer.Option(help=f"{_OF_RAY}of each model: a number, or LEAST:MOST (1).")
    ] = None,
    queue: Annotated[
        int | None,
        typer.Option(min=1, help=f"{_OF_RAY}requests that wait for a model; more: 503 (64)."),
    ] = None,
    config: ConfigPath = None,
    set: Overrides = None,
    json: AsJson = False,
) -> None:
    """Serve a model over HTTP: /v1/classify, /predict, /v2 (Open Inference), /metrics, /docs.

    A later version of a published model is taken up while it serves. SIGTERM and Ctrl-C end it
    after what was asked is answered. --json prints one object once requests are answered.
    """
    ours = {
        "max_batch_tokens": max_batch_tokens, "max_wait_ms": max_wait_ms, "max_texts": max_texts,
        "max_bytes": max_bytes, "max_queue": max_queue, "shadow": shadow,
        "token_file": token_file,
    }  # fmt: skip
    of_ray = {"and": other, "share": share, "replicas": replicas, "queue": queue}
    shared = {"host": host, "port": port, "threads": threads, "open": open_to_all or None}
    if on not in (None, "ray"):
        raise UsageError("unknown server", where="--on", expected="ray, or no --on", got=on)
    if on is None:
        _refuse(of_ray, "are for --on ray")
        checked = load(config, [*(set or []), *_overrides({**shared, **ours})])
        if yarn:
            _refuse({"host": host, "port": port}, "are not for --yarn: the node gives the port")
            _serve_on_yarn(action, model, checked, json)
            return
        _refuse({"ACTION": action}, "is for --yarn")
        _serve(model, checked, json)
        return
    more = {"yarn": yarn or None, "ACTION": action}
    _refuse({**ours, **more}, "are for Howdah's own server, without --on")
    _serve_by_ray(model, load(config, [*(set or []), *_overrides(shared)]), of_ray, json)


def _refuse(options: dict[str, Any], what: str) -> None:
    """Raise UsageError where an option of the other server is given."""
    given = [
        name if name.isupper() else f"--{name.replace('_', '-')}"
        for name, value in options.items()
        if value is not None
    ]
    if given:
        raise UsageError(f"{', '.join(given)} {what}", where=given[0])


def _overrides(options: dict[str, Any]) -> list[str]:
    """Options as keys of the section serve, quoted so that YAML reads what was given."""
    import json

    return [f"serve.{key}={json.dumps(v)}" for key, v in options.items() if v is not None]


def _serve(model: str, checked: Any, as_json: bool) -> None:
    from howdah.serving.server import Started, serve

    def ready(started: Started) -> None:
        answer(started.as_dict(), as_json, [])
        sys.stdout.flush()

    serve(
        model, checked.serve, publish_directory=checked.publish.directory, say=say, ready=ready,
        limits=getattr(checked, "drift", None),
    )  # fmt: skip


def _serve_by_ray(model: str, checked: Any, of_ray: dict[str, Any], as_json: bool) -> None:
    other, share = of_ray["and"], of_ray["share"]
    if other is None and share is not None:
        raise UsageError("--share is the share of --and", remedy="name the other model by --and")
    from howdah.models.version import open_version
    from howdah.serving.deployment import ray_serve
    from howdah.serving.deployment.split import require_comparable

    options = ray_serve.Options.of(
        checked.serve,
        replicas=ray_serve.parse_replicas(of_ray["replicas"] or "1"),
        queue=of_ray["queue"] or 64,
    )
    found = [open_version(model, checked.publish.directory)]
    part = 0.0
    if other is not None:
        found.append(open_version(other, checked.publish.directory))
        part = require_comparable(*found, share)

    def ready(what: dict) -> None:
        answer(what, as_json, [])
        sys.stdout.flush()

    ray_serve.serve(found, part, options, say=say, ready=ready)


def _serve_on_yarn(action: str | None, model: str, checked: Any, as_json: bool) -> None:
    from howdah.config.options.serve import OF_CONTAINER, require_implemented
    from howdah.models.version import open_version
    from howdah.serving.http import access
    from howdah.yarn.serving import control

    if action not in (None, "status", "stop"):
        raise UsageError("unknown action", where="ACTION", expected="status or stop", got=action)
    version = open_version(model, checked.publish.directory, key="--model")
    if not version.follows:
        raise ModelError(
            "a server on YARN follows a published model", where=f"--model {model}",
            expected="NAME below publish.directory, or a published model's directory",
            got=f"{version.path}, which stays as it is",
            remedy="leave the version out, or `howdah publish` the run",
        )  # fmt: skip
    directory = version.root
    if action == "stop":
        found = control.stop(checked, directory, say)
        answer(found.as_dict(), as_json, [f"{found.application} is {found.state}"])
        return
    tokens = access.tokens(checked.serve.token_file)
    if action == "status":
        found = control.status(checked, directory, tokens)
    else:
        others = set(type(checked.serve).model_fields) - set(OF_CONTAINER)
        require_implemented(checked.serve, others, "a server on YARN")
        found = control.start(checked, directory, tokens, say)
    answer(found.as_dict(), as_json, found.lines)
