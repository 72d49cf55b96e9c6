"""The run configuration's section `alerts` (howdah/config/model.py has the others)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from howdah.config.types import Bytes, Names, Section

__all__ = ["KINDS", "AlertKind", "AlertsSection"]

AlertKind = Literal["failure", "stall", "gate", "drift", "disk"]
KINDS: dict[AlertKind, str] = {
    "failure": "a command or a job has failed",
    "stall": "a job has taken no step for long",
    "gate": "a run has missed its gate",
    "drift": "a partition's rows have drifted",
    "disk": "a storage is full, or nearly so",
}


class AlertsSection(Section):
    """The command that is informed when something needs a look: it gets one JSON object on its
    stdin. Sending never changes the exit code of the command that has failed."""

    command: list[Annotated[str, Names("alert")]] | None = None
    """Program and arguments, started without a shell; gets the JSON object on its stdin."""
    on: list[AlertKind] = list(KINDS)
    """Of what: failure, stall (no step for long), gate (missed), drift, disk (full or nearly)."""
    timeout_seconds: float = Field(default=10.0, gt=0, le=120, allow_inf_nan=False)
    """Seconds after which the command is killed."""
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

    @property
    def asks(self) -> bool:
        """Whether there is a command to send alerts to."""
        return self.command is not None
