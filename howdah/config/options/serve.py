"""The run configuration's section `serve`: the server of `howdah serve`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import Field, model_validator

from howdah.config.types import AnyPath, Bytes, Section
from howdah.errors import UsageError

OF_CONTAINER: dict[str, Any] = {"host": "0.0.0.0", "port": 0}
"""What a server in a container on YARN sets itself: its node's interfaces, a free port."""

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class ServeSection(Section):
    """Where the server listens, and its limits. Options of the command replace these keys."""

    host: str = Field(default="127.0.0.1", pattern=r"^[A-Za-z0-9.:_-]+$")
    """Address to listen on. Another than loopback needs serve.token_file or serve.open."""
    port: int = Field(default=8000, ge=0, le=65535)
    """Port; 0: a free one."""
    token_file: AnyPath | None = None
    """Local file of the bearer tokens that requests must have, one a line, readable to its owner
    alone; null: none is asked for."""
    open: bool = False
    """Listen on another address than loopback without a token: all who reach it can classify."""
    threads: int | None = Field(default=None, ge=1)
    """Compute threads of the model; null: all cores."""
    max_batch_tokens: int = Field(default=1024, ge=1)
    """Most tokens, with padding, that are computed at once; a longer text is computed alone."""
    max_wait_ms: float = Field(default=2.0, ge=0, le=1000, allow_inf_nan=False)
    """Milliseconds that a batch with room waits for more texts, while several clients ask."""
    max_texts: int = Field(default=32, ge=1)
    """Most texts of one request; more: 413."""
    max_bytes: Bytes = 2 * 2**20
    """Most bytes of a request's body; more: 413."""
    max_queue: int = Field(default=512, ge=1)
    """Most texts that wait or are computed; more: 429 with Retry-After."""
    request_seconds: Seconds = 60.0
    """Longest wait of a request for its answer; then 504. A request's header X-Timeout-Ms may
    shorten it."""
    read_seconds: Seconds = 30.0
    """Longest time in which a client sends its request; then 408."""
    reload_seconds: Seconds = 5.0
    """Seconds between two looks at the published model's current version."""
    grace_seconds: float = Field(default=30.0, ge=0, allow_inf_nan=False)
    """Seconds to answer what was asked before a SIGTERM."""
    shadow: AnyPath | None = None
    """A challenger: another version of the model (4, or v=4), or a model's path. It classifies what
    is answered by the served version, in a process of its own, and disagreement is counted."""
    memory: Bytes = 1 * 2**30
    """Memory of the server's container on YARN."""
    vcores: int = Field(default=1, ge=1)
    """Vcores of the server's container on YARN."""

    @model_validator(mode="after")
    def _fitting(self) -> ServeSection:
        if self.max_queue < self.max_texts:
            raise ValueError(
                f"serve.max_queue ({self.max_queue}) must hold one request of serve.max_texts"
                f" ({self.max_texts})"
            )
        return self


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
        remedy="leave them out for this server; `howdah serve` without --on and --yarn reads all",
    )
