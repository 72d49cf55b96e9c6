"""The run configuration's section `alerts` (howdah/config/model.py has the others)."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from howdah import redact
from howdah.config.types import AnyPath, Bytes, Names, Section
from howdah.core.machine import is_loopback

AlertKind = Literal["failure", "stall", "gate", "drift", "disk"]
KINDS: dict[AlertKind, str] = {
    "failure": "a command or a job has failed",
    "stall": "a job has taken no step for long",
    "gate": "a run has missed its gate",
    "drift": "a partition's rows have drifted",
    "disk": "a storage is full, or nearly so",
}


def check_url(url: str) -> str:
    """A webhook's URL: https, or http to this machine.

    Raises:
        ValueError: it is another.
    """
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("a webhook's URL has no blanks, line breaks or other such characters")
    parts = urlsplit(url)
    if parts.username is not None:
        raise ValueError("a webhook's URL has no user and password: they would not be sent")
    host = parts.hostname or ""
    if parts.scheme == "https" and host:
        return url
    if parts.scheme == "http" and is_loopback(host):
        return url
    raise ValueError("a webhook is https://..., or http:// to this machine's loopback address")


class AlertsSection(Section):
    """Who is informed when something needs a look: one JSON object to a command's stdin, or by
    POST. Sending never changes a command's exit code."""

    command: list[Annotated[str, Names("alert")]] | None = None
    """Program and arguments, started without a shell; gets the JSON object on its stdin."""
    webhook: Annotated[str, Names("alert")] | None = None
    """URL that gets the JSON object by POST: https, or http to this machine. It is left out of what
    is saved and shown, as a chat's URL is a key to it."""
    webhook_file: AnyPath | None = None
    """File with the URL that no other user may read (mode 0600, or a mounted secret), instead of
    `webhook`: for a job, whose saved configuration has no secrets, a file that the driver's machine
    can read."""
    on: list[AlertKind] = list(KINDS)
    """Of what: failure, stall (no step for long), gate (missed), drift, disk (full or nearly)."""
    timeout_seconds: float = Field(default=10.0, gt=0, le=120, allow_inf_nan=False)
    """How long a command or a webhook may take."""
    stall_factor: float = Field(default=20.0, ge=2.0, allow_inf_nan=False)
    """A job has stalled when no step has ended for so many times its median step."""
    stall_seconds: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    """... and for at least so long: evaluations and checkpoints lie between steps, too."""
    disk_bytes: Bytes | None = None
    """Less free than this where the run directory lies is an alert of kind disk; null: only a
    storage that is full."""

    @field_validator("command")
    @classmethod
    def _a_program(cls, value: list[str] | None) -> list[str] | None:
        if value is not None and (not value or not value[0].strip()):
            raise ValueError("give the program and its arguments as a list: [/usr/bin/notify, -v]")
        return value

    @field_validator("webhook")
    @classmethod
    def _safe(cls, value: str | None) -> str | None:
        return value if value in (None, redact.LEFT_OUT) else check_url(value)

    @model_validator(mode="after")
    def _one_webhook(self) -> AlertsSection:
        if self.webhook is not None and self.webhook_file is not None:
            raise ValueError("give alerts.webhook or alerts.webhook_file, not both")
        return self

    @property
    def asks(self) -> bool:
        """Whether anything is to be sent to."""
        return any(to is not None for to in (self.command, self.webhook, self.webhook_file))
