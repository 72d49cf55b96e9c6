"""A server of a published model as an application that YARN keeps alive.

skein's master holds the application and restarts the container whenever the server in it ends; YARN
restarts the master. A server has no driver, since it has no world of ranks.
"""

from __future__ import annotations

import contextlib
import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from howdah import storage
from howdah.config.model import Config
from howdah.errors import NotFound
from howdah.models import server_file
from howdah.models.server_file import ADDRESS_VARIABLE, MODEL_VARIABLE, TOKENS
from howdah.storage.shapes import ANY_OBJECT, TEXT, Fields, Items, fault
from howdah.yarn import spec

ATTEMPTS = 10
"""Most attempts of skein's master; the cluster's own limit applies too."""
_HEALTH_BYTES = 65536
_HEALTH = Fields({"status": TEXT, "models": Items(ANY_OBJECT)})


def look(application: str, model_directory: str, tokens: list[bytes]) -> dict[str, Any]:
    """Where a model's server listens, and its answer to /health: url, container, health, file.

    Args:
        application: its id; the address of another application is ignored.
        tokens: tokens of the server's clients; []: the address's signature is not verified.
    """
    path, address = server_file.path_of(model_directory), None
    with contextlib.suppress(NotFound):
        # An earlier server may have signed its file with another token: check its id first.
        if server_file.read(path, []).application == application:
            address = server_file.read(path, tokens)
    return {
        "url": None if address is None else address.url,
        "container": None if address is None else address.container,
        "health": None if address is None else _health(address.url),
        "file": path,
    }


def remove_address(application: str, model_directory: str) -> None:
    """Remove the address of a server that has ended."""
    path = server_file.path_of(model_directory)
    with contextlib.suppress(NotFound):
        if server_file.read(path, []).application == application:
            storage.remove(path)


def application(
    config: Config,
    shipment: spec.YarnShipment,
    model_directory: str,
    *,
    config_file: str,
    token_file: str | None,
    hadoop_file: str,
    secure: bool,
    token: str,
) -> spec.ApplicationRequest:
    """The server's request to YARN; a pure function.

    Args:
        config_file, token_file, hadoop_file: local paths; None: without tokens.
        secure: True if the cluster has Kerberos.
        token: this submission's token, which one of its tags contains.
    """
    tokens = {} if token_file is None else {TOKENS: token_file}
    return spec.ApplicationRequest(
        name=f"serve {storage.name(model_directory.rstrip('/'))}",
        **spec.common(config, model_directory, secure=secure, token=token),
        file_systems=spec.file_systems([model_directory]),
        attempts=ATTEMPTS,
        workers=1,
        nodes=(),
        restarts=-1,
        driver=spec.ContainerRequest(
            memory_mib=spec.mib(config.yarn.driver.memory), vcores=1, gpus=0,
            script="", files={}, env=spec.MASTER_ENV,
        ),
        worker=spec.ContainerRequest(
            memory_mib=spec.mib(config.serve.memory), vcores=config.serve.threads or 1, gpus=0,
            script="mkdir -p tmp\n" + spec.preamble(shipment)
            + f"exec {spec.words(config, 'howdah.serving')}\n",
            files=spec.localised(shipment, hadoop_file, {spec.CONFIG: config_file, **tokens}),
            env={
                MODEL_VARIABLE: model_directory,
                ADDRESS_VARIABLE: server_file.path_of(model_directory),
            },
        ),
    )  # fmt: skip


def _health(url: str) -> dict[str, Any] | None:
    """The answer to /health at an address, without redirects or proxies: if the address is not
    verified, any user who can write to the model's directory may have written it."""
    try:
        parts = urlsplit(url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=5)
    except ValueError:  # the port is not a number
        return None
    try:
        connection.request("GET", "/health")
        answer = connection.getresponse()
        health = json.loads(answer.read(_HEALTH_BYTES)) if answer.status == 200 else None
    except (OSError, ValueError, RecursionError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return health if fault(health, _HEALTH) is None else None
