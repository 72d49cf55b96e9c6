"""The server in a container on YARN: `python -m howdah.serving`, in the container's directory.

It listens on the node's interfaces, on a free port, and writes its URL into the model's
server.json. YARN ends it with SIGTERM; if it fails, another container starts and replaces the file.
"""

from __future__ import annotations

import os
import socket
import sys
import time

from howdah import redact, storage
from howdah.config import loader
from howdah.config.options.serve import OF_CONTAINER
from howdah.errors import HowdahError, Terminated, UsageError, render
from howdah.models import server_file
from howdah.models.server_file import ADDRESS_VARIABLE, MODEL_VARIABLE, TOKENS
from howdah.serving.http import access
from howdah.serving.server import Started, serve

CONFIG = "run.yaml"
"""Name of the configuration file in the container, as in yarn/spec.py; a test compares them."""

_PAUSE_SECONDS = 10.0
"""Pause after an error: the next container starts at once, and would fail in the same way."""


def say(line: str) -> None:
    """Print a line to the container's log."""
    print(redact.text(line), file=sys.stderr, flush=True)


def main() -> int:
    """Serve until a signal; return the exit code."""
    try:
        config = loader.load(CONFIG)
        storage.configure(retry_seconds=config.run.storage_retry_seconds, mode=config.most_open)
        storage.be_patient()
        model, path = _variable(MODEL_VARIABLE), _variable(ADDRESS_VARIABLE)
        container = _variable("CONTAINER_ID")
        token_file = os.path.abspath(TOKENS) if os.path.exists(TOKENS) else None
        settings = config.serve.model_copy(update={**OF_CONTAINER, "token_file": token_file})
        tokens = access.tokens(token_file)

        def ready(started: Started) -> None:
            host = os.environ.get("NM_HOST") or socket.gethostname()
            address = server_file.ServerAddress(
                url=f"http://{host}:{started.port}", container=container, started=time.time(),
                application="application_" + "_".join(container.rsplit("_", 4)[1:3]),
            )  # fmt: skip
            server_file.write(path, address, tokens)
            say(f"{address.url} is in {path}")

        serve(
            model, settings, publish_directory=config.publish.directory, say=say, ready=ready,
            limits=config.drift,
        )  # fmt: skip
    except Terminated as error:
        say(f"howdah: {error.what}")
        return error.exit_code
    except HowdahError as error:
        say(f"howdah: {render(error)}")
        time.sleep(_PAUSE_SECONDS)
        return error.exit_code
    return 0


def _variable(name: str) -> str:
    value = os.environ.get(name)
    if not value:
        raise UsageError(
            "this process is not in a container of `howdah serve --on yarn`", where=name
        )
    return value
