"""`howdah serve --on ray`: models behind Ray Serve's HTTP, on this machine.

A router reads and answers requests. The number of waiting requests decides how many replicas each
model has, between two bounds. The queue is bounded as well: beyond it, the answer is 503.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from howdah.config.options.serve import ServeSection, require_implemented
from howdah.core import machine
from howdah.errors import ClusterError, UsageError
from howdah.models.version import Version
from howdah.serving.deployment import listening
from howdah.serving.deployment.own_ray import own_ray, require_ray

_LOOK_SECONDS = 1.0
_UPSCALE_SECONDS, _DOWNSCALE_SECONDS = 5.0, 120.0
_REQUEST_SECONDS = 60.0
_ROUTED = 256
"""Largest number of requests that the router reads or refuses at once."""
_BOUNDS = re.compile(r"([1-9][0-9]{0,3})(?::([1-9][0-9]{0,3}))?")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of Ray Serve's server."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0: a free one."""
    open: bool = False
    """Listen on other addresses than loopback: everyone who reaches the port can classify."""
    replicas: tuple[int, int] = (1, 1)
    """Smallest and largest number of replicas of each model."""
    queue: int = 64
    """Largest number of requests that wait for a model; more are refused."""
    threads: int | None = None
    """Threads of each replica; None: 1."""
    framework: str | None = None
    """Framework that runs the models; None: the one that each was trained with."""

    @classmethod
    def of(cls, section: ServeSection, **more: Any) -> Options:
        """Take the options from a configuration's section `serve`, by the fields' names.

        Args:
            more: fields that the section does not have.
        Raises:
            UsageError: the section sets a key that is not a field here.
        """
        keys = {field.name for field in fields(cls)} & set(ServeSection.model_fields)
        require_implemented(section, keys, "Ray Serve's server")
        return cls(**{key: getattr(section, key) for key in keys}, **more)


def parse_replicas(text: str) -> tuple[int, int]:
    """Parse "2" or "1:4" as (least, most).

    Raises:
        UsageError: it is neither, or the bounds are in the wrong order.
    """
    match = _BOUNDS.fullmatch(text.strip())
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= least <= most:
        raise UsageError(
            "not a number of replicas", where="--replicas", expected="2, or 1:4", got=text
        )
    return least, most


def serve(
    variants: Sequence[Version],
    share: float,
    options: Options,
    *,
    say: Callable[[str], None],
    ready: Callable[[dict[str, Any]], None] = lambda what: None,
) -> None:
    """Serve one or two models until a signal raises in the main thread.

    Args:
        variants: the models.
        share: share of requests that the second model answers; 0 if there is one model.
        say: takes a line.
        ready: called once, when requests are answered: {url, health, models, share}.
    Raises:
        UsageError: no Ray, more replicas than cores, the port is taken, or other machines would
            reach it without serve.open.
        ClusterError: Ray does not start, or has ended.
    """
    listening.require_guarded(options.host, guarded=options.open)
    require_ray()
    cores = machine.cores()
    threads = options.threads or 1
    needed = len(variants) * options.replicas[0] * threads
    if needed > cores:
        raise UsageError(
            "the models need more cores than there are",
            where="--replicas, serve.threads",
            expected=f"at most {cores} threads in all replicas",
            got=f"{needed}",
        )
    # Ray binds the port itself, so check the address here as for every other listener.
    with listening.listen(options.host, options.port, guarded=options.open) as probe:
        port = probe.getsockname()[1]
    url = f"http://{listening.shown(options.host)}:{port}"
    say(f"starting Ray on {cores} cores")
    with own_ray(cores):
        _deploy(variants, share, options, port)
        titles = " and ".join(one.title for one in variants)
        say(f"serving {titles} at {url}/predict (health: {url}/health; Ctrl-C ends it)")
        models = [one.as_dict() for one in variants]
        urls = {name: f"{url}/{path}" for name, path in (("url", "predict"), ("health", "health"))}
        ready({**urls, "models": models, "share": share})
        _watch()


def _deploy(variants: Sequence[Version], share: float, options: Options, port: int) -> None:
    import logging

    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    from howdah.serving.deployment.replicas import Classifier, Router

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    least, most = options.replicas
    handles = [
        serve.deployment(Classifier)
        .options(
            name=f"model-{number}",
            ray_actor_options={"num_cpus": options.threads or 1},
            max_ongoing_requests=2,  # the next one is at the replica when this one is answered
            max_queued_requests=options.queue,
            autoscaling_config={
                "min_replicas": least, "max_replicas": most, "target_ongoing_requests": 1,
                "upscale_delay_s": _UPSCALE_SECONDS, "downscale_delay_s": _DOWNSCALE_SECONDS,
            },
        )
        .bind(one.absolute_path, options.threads or 1, options.framework)
        for number, one in enumerate(variants)
    ]  # fmt: skip
    router = serve.deployment(Router).options(
        name="router",
        num_replicas=1,
        ray_actor_options={"num_cpus": 0},
        # More than all models' queues together, so that these refuse first, with Howdah's message.
        # Beyond this bound, Ray's proxy refuses with 503 in plain text.
        max_ongoing_requests=_ROUTED + len(variants) * (options.queue + 2 * most),
        max_queued_requests=_ROUTED,
    )
    try:
        serve.start(
            proxy_location="HeadOnly",
            http_options={
                "host": options.host, "port": port, "request_timeout_s": _REQUEST_SECONDS,
            },
        )  # fmt: skip
        serve.run(
            router.bind(
                [{"name": one.name, "version": one.number, "run_id": one.run_id}
                 for one in variants],
                share, listening.host_names(options.host), *handles,
            ),
            name="howdah",
            route_prefix="/",
        )  # fmt: skip
    except (RayError, RayServeException, RuntimeError) as error:
        raise ClusterError(
            "Ray Serve could not start the models",
            where=", ".join(one.path for one in variants),
            got="\n".join(str(error).splitlines()[-15:]) or type(error).__name__,
            remedy="`howdah predict --model ... --stdin` opens the model without Ray",
        ) from None


def _watch() -> None:
    """Wait for a signal's exception; raise if Ray has ended by itself."""
    import ray
    from ray.exceptions import RayError

    while True:
        time.sleep(_LOOK_SECONDS)
        try:
            ray.cluster_resources()
        except (RayError, RuntimeError, OSError) as error:
            raise ClusterError(
                "Ray has ended",
                got=str(error).splitlines()[0] if str(error) else None,
                remedy="start it again; the usual cause is too little memory (dmesg)",
            ) from None
