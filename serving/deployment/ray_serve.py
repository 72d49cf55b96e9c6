"""`howdah serve --on ray`: models behind Ray Serve's HTTP, on this machine.

One process has the server's own application (serving/http) and holds no model. The number of
waiting requests decides how many replicas each model has, between two bounds. The queue is bounded
as well: beyond it, the answer is 429.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from howdah import storage
from howdah.config.options.serve import ServeSection, require_implemented
from howdah.core import machine, threads
from howdah.errors import ClusterError, UsageError
from howdah.models.version import Version
from howdah.serving.deployment import listening
from howdah.serving.deployment.own_ray import own_ray, require_ray

_LOOK_SECONDS = 1.0
_UPSCALE_SECONDS, _DOWNSCALE_SECONDS = 5.0, 120.0
_LATER_SECONDS = 10.0
"""How much later than the server Ray's proxy gives up a request: the server's refusal says more."""
_LINES_SECONDS = 5.0
_ADMITTED = 256
"""Largest number of requests that the server's process reads or refuses at once."""
_BOUNDS = re.compile(r"([1-9][0-9]{0,3})(?::([1-9][0-9]{0,3}))?")
_IMPLEMENTED = ("host", "port", "token_file", "open", "threads", "max_texts")


def require_keys(section: ServeSection) -> None:
    """Refuse keys that this server does not read: batches are made in the replicas, and memory is
    Ray's.

    Raises:
        UsageError: the section sets one.
    """
    require_implemented(section, _IMPLEMENTED, "Ray Serve's server")


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
    section: ServeSection,
    *,
    replicas: tuple[int, int],
    queue: int,
    say: Callable[[str], None],
    ready: Callable[[dict[str, Any]], None] = lambda what: None,
) -> None:
    """Serve one or two models until a signal raises in the main thread.

    Args:
        variants: the models.
        share: share of requests that the second model answers; 0.0 if there is one model.
        section: where it listens, and its limits; `threads` are a replica's, None: 1.
        replicas: smallest and largest number of replicas of each model.
        queue: largest number of requests that wait for a model; more are refused.
        say: takes a line.
        ready: called once, when requests are answered: {url, port, pid, models, share}.
    Raises:
        UsageError: no Ray, more replicas than cores, the port is taken, other machines would
            reach it without a token, or a key that it does not read.
        ConfigError: the file of tokens cannot be used.
        ClusterError: Ray does not start, or has ended.
    """
    from howdah.serving.http import access

    require_keys(section)
    guarded = section.token_file is not None or section.open
    listening.require_guarded(section.host, guarded=guarded)
    access.tokens(section.token_file)  # an unusable file is refused before Ray starts
    require_ray()
    cores = machine.cores()
    each = section.threads or 1
    needed = len(variants) * replicas[0] * each
    if needed > cores:
        raise UsageError(
            "the models need more cores than there are",
            where="--replicas, serve.threads",
            expected=f"at most {cores} threads in all replicas",
            got=f"{len(variants)} models, {replicas[0]} replicas each, of {each} threads: {needed}",
        )
    # Ray binds the port itself, so check the address here as for every other listener.
    with listening.listen(section.host, section.port, guarded=guarded) as probe:
        port = probe.getsockname()[1]
    url = f"http://{listening.shown(section.host)}:{port}"
    say(f"starting Ray on {cores} cores")
    with own_ray(cores):
        ingress = _deploy(variants, share, section, replicas, queue, port)
        titles = " and ".join(one.title for one in variants)
        say(f"serving {titles} at {url}/v1/classify (page: {url}/; Ctrl-C ends it)")
        if warning := listening.reached_by_others(section.host, section.token_file is not None):
            say(warning)
        models = [one.as_dict() for one in variants]
        ready({"url": url, "port": port, "pid": os.getpid(), "models": models, "share": share})
        with _lines_said(ingress, say):
            _watch()


def _deploy(
    variants: Sequence[Version],
    share: float,
    section: ServeSection,
    replicas: tuple[int, int],
    queue: int,
    port: int,
) -> Any:
    """Start the server's process and the replicas; Ray Serve's handle of the former.

    Raises:
        ClusterError: they do not start.
    """
    import logging

    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    from howdah.serving.deployment.replicas import Classifier, Ingress
    from howdah.serving.http.state import REQUEST_SECONDS

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    least, most = replicas
    each = section.threads or 1
    classifiers = [
        serve.deployment(Classifier)
        .options(
            name=f"model-{number}",
            ray_actor_options={"num_cpus": each},
            max_ongoing_requests=2,  # the next one is at the replica when this one is answered
            max_queued_requests=queue,
            autoscaling_config={
                "min_replicas": least, "max_replicas": most, "target_ongoing_requests": 1,
                "upscale_delay_s": _UPSCALE_SECONDS, "downscale_delay_s": _DOWNSCALE_SECONDS,
            },
        )
        .bind(one.absolute_path, each)
        for number, one in enumerate(variants)
    ]  # fmt: skip
    ingress = serve.deployment(serve.ingress()(Ingress)).options(
        name="server",
        num_replicas=1,
        ray_actor_options={"num_cpus": 0},
        # More than all models' queues together, so that these refuse first, with Howdah's message.
        # Beyond this bound, Ray's proxy refuses with 503 in plain text.
        max_ongoing_requests=_ADMITTED + len(variants) * (queue + 2 * most),
        max_queued_requests=_ADMITTED,
    )
    try:
        serve.start(
            proxy_location="HeadOnly",
            http_options={
                "host": section.host, "port": port,
                "request_timeout_s": REQUEST_SECONDS + _LATER_SECONDS,
            },
        )  # fmt: skip
        return serve.run(
            ingress.bind(
                [{"address": one.address, "path": one.absolute_path, "number": one.number}
                 for one in variants],
                share, _plain(section), *classifiers,
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


def _plain(section: ServeSection) -> dict[str, Any]:
    """The section for a process that may have another working directory."""
    plain = section.model_dump(mode="json")
    if section.token_file is not None:
        plain["token_file"] = storage.absolute(section.token_file)
    return plain


@contextlib.contextmanager
def _lines_said(ingress: Any, say: Callable[[str], None]) -> Iterator[None]:
    """Inside, what the server's process says is said here: its own log ends with Ray.

    A thread asks it, since Ray drops the exception of a signal that arrives while the main thread
    waits for an answer.
    """
    ended = threading.Event()

    def follow() -> None:
        while not ended.wait(_LOOK_SECONDS):
            try:
                lines = ingress.lines.remote().result(timeout_s=_LINES_SECONDS)
            except Exception:  # noqa: BLE001 - Ray ends, or replaces the process
                continue
            for line in lines:
                say(line)

    thread = threads.start(follow, name="lines", failed=threads.REPORT, say=say)
    try:
        yield
    finally:
        ended.set()
        thread.join(_LOOK_SECONDS)


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
