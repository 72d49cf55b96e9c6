"""`howdah serve`: the server, in this process, on YARN, or behind Ray Serve.

A server on YARN is an application, as a training job is: `howdah status`, `logs`, `kill` and `ps`
are for it, too.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from howdah.cli.common import MODEL_HELP, AsJson, ConfigPath, Overrides, answer, load, say
from howdah.errors import ModelError, UsageError

app = typer.Typer()

_OF_RAY = "With --on ray: "


@app.command()
def serve(
    model: Annotated[str, typer.Option(help=f"{MODEL_HELP}.")],
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            help="yarn: an application that YARN keeps alive; ray: behind Ray Serve; default: this"
            " process.",
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on (serve.host: 127.0.0.1).")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port; 0: a free one (serve.port: 8000).")
    ] = None,
    other: Annotated[
        str | None,
        typer.Option("--and", help=f"{_OF_RAY}a second model, which gets --share of requests."),
    ] = None,
    share: Annotated[
        float | None,
        typer.Option(
            help=f"{_OF_RAY}fraction of requests for the model of --and. Requests with the same"
            " `key` always go to the same model."
        ),
    ] = None,
    replicas: Annotated[
        str | None, typer.Option(help=f"{_OF_RAY}replicas of each model: N, or MIN:MAX (1).")
    ] = None,
    queue: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"{_OF_RAY}requests that may wait for a model; more get 429 (64)."
        ),
    ] = None,
    config: ConfigPath = None,
    set: Overrides = None,
    json: AsJson = False,
) -> None:
    """Serve a model over HTTP: /v1/classify, /predict, /v2 (Open Inference), /metrics, a page at /.

    The server switches to a newly published version while it runs. SIGTERM and Ctrl-C end it after
    pending requests are answered. --json prints one object once the server is ready.
    """
    of_ray = {"and": other, "share": share, "replicas": replicas, "queue": queue}
    address = {"host": host, "port": port}
    if on not in (None, "yarn", "ray"):
        raise UsageError("unknown server", where="--on", expected="yarn, ray, or no --on", got=on)
    if on != "ray":
        _refuse(of_ray, "without --on ray")
    if on == "yarn":
        _refuse(address, "with --on yarn, where the container's node gives the port")
    checked = load(config, [*(set or []), *_overrides(address)])
    if on == "yarn":
        _serve_on_yarn(model, checked, json)
    elif on == "ray":
        _serve_by_ray(model, checked, of_ray, json)
    else:
        _serve(model, checked, json)


def _refuse(options: dict[str, Any], what: str) -> None:
    """Raise UsageError where an option of the other server is given."""
    names = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if names:
        raise UsageError(f"no {', '.join(names)} {what}", where=names[0])


def _overrides(options: dict[str, Any]) -> list[str]:
    """Options as keys of the section serve, quoted so that YAML reads what was given."""
    import json

    return [f"serve.{key}={json.dumps(v)}" for key, v in options.items() if v is not None]


def _serve(model: str, checked: Any, as_json: bool) -> None:
    from howdah.serving.server import serve

    serve(
        model, checked.serve, publish_directory=checked.publish.directory, say=say,
        ready=lambda started: answer(started.as_dict(), as_json, []), limits=checked.drift,
    )  # fmt: skip


def _serve_by_ray(model: str, checked: Any, of_ray: dict[str, Any], as_json: bool) -> None:
    other, share = of_ray["and"], of_ray["share"]
    if other is None and share is not None:
        raise UsageError("--share is the share of --and", remedy="name the other model by --and")
    from howdah.models.version import open_version
    from howdah.serving.deployment import ray_serve
    from howdah.serving.deployment.split import require_comparable

    ray_serve.require_keys(checked.serve)
    replicas = ray_serve.parse_replicas(of_ray["replicas"] or "1")
    versions = [open_version(model, checked.publish.directory)]
    part = 0.0
    if other is not None:
        versions.append(open_version(other, checked.publish.directory))
        part = require_comparable(*versions, share)

    ray_serve.serve(
        versions, part, checked.serve, replicas=replicas, queue=of_ray["queue"] or 64,
        say=say, ready=lambda started: answer(started, as_json, []),
    )  # fmt: skip


def _serve_on_yarn(model: str, checked: Any, as_json: bool) -> None:
    from howdah.cli.jobs import submit_to
    from howdah.models.version import open_version
    from howdah.serving.http import access
    from howdah.yarn.server_cluster import ServerCluster

    version = open_version(model, checked.publish.directory, key="--model")
    if not version.follows:
        raise ModelError(
            "a server on YARN follows a published model", where=f"--model {model}",
            expected="NAME below publish.directory, or a published model's directory",
            got=f"{version.path}, which stays as it is",
            remedy="leave the version out, or `howdah publish` the run",
        )  # fmt: skip
    tokens = lambda: access.tokens(checked.serve.token_file)  # noqa: E731
    submit_to(ServerCluster(checked, version.root, tokens), json=as_json)
