"""The run configuration's section `serve`: the server of `howdah serve`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from pydantic import Field

from howdah.config.types import AnyPath, Bytes, Rare, Section, Usual
from howdah.core.processes import limit
from howdah.errors import UsageError

OF_CONTAINER: dict[str, Any] = {"host": "0.0.0.0", "port": 0}
"""What a server in a container on YARN sets itself: its node's interfaces, a free port."""

MAX_QUEUE = limit("max_queue", 512)
"""Most texts that wait or are computed; more: 429 with Retry-After. Sixteen full requests: at 100
texts a second the last one waits five seconds, and a client does better to ask again."""

MAX_BATCH_TOKENS = 1024
"""Most tokens of a batch, with padding. A longer text is computed alone."""


class ServeSection(Section):
    """Where the server listens, and its limits. --host and --port replace the keys."""

    host: Usual[str] = Field(default="127.0.0.1", pattern=r"^[A-Za-z0-9.:_-]+$")
    """Address to listen on. Any other than loopback needs serve.token_file or serve.open."""
    port: Usual[int] = Field(default=8000, ge=0, le=65535)
    """Port to listen on. 0: a free one."""
    token_file: Usual[AnyPath | None] = None
    """Local file of bearer tokens, one per line, that only its owner can read. Each request must
    carry one of them. null: requests need no token."""
    open: Rare[bool] = False
    """Whether the server may listen on another address than loopback without a token. Everyone who
    reaches it can classify then."""
    threads: int | None = Field(default=None, ge=1)
    """Compute threads of the model, and vcores of its container on YARN. null: all cores; one vcore
    on YARN, and one thread of each replica behind Ray Serve."""
    max_texts: int = Field(default=32, ge=1, le=MAX_QUEUE)
    """Most texts of one request. A larger request is refused with 413."""
    memory: Rare[Bytes] = 1 * 2**30
    """Memory of the server's container on YARN."""


def require_implemented(section: ServeSection, implemented: Collection[str], server: str) -> None:
    """Refuse keys that are set and that a server does not implement.

    A key that a server drops without a word is worse than none: with `token_file` the operator
    believes that requests need a token.

    Args:
        implemented: the keys that it reads.
        server: what the message calls it.
    Raises:
        UsageError: with every such key.
    """
    dropped = [
        key
        for key, field in ServeSection.model_fields.items()
        if key not in implemented
        and getattr(section, key) != field.get_default(call_default_factory=True)
    ]
    if not dropped:
        return
    supported = ", ".join(sorted(set(implemented) & set(ServeSection.model_fields)))
    raise UsageError(
        f"the configuration sets keys that {server} does not implement",
        where=", ".join(f"serve.{key}" for key in dropped),
        expected=f"of the section serve only {supported}",
        remedy="leave them out for this server; `howdah serve` without --on reads all",
    )
