"""The run configuration's section `alerts` (howdah/config/model.py has the others)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from howdah.config.types import Names, Rare, Section

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
    """Program and its arguments, started without a shell, that gets each alert as a JSON object on
    its stdin."""
    on: list[AlertKind] = list(KINDS)
    """Kinds of alerts that are sent: failure, stall (no step for long), gate (missed), drift, disk
    (full or nearly)."""
    stall_seconds: Rare[float] = Field(default=300.0, gt=0, allow_inf_nan=False)
    """Seconds without a finished step after which a job may have stalled; they must exceed an
    evaluation or a checkpoint. The alert also waits for 20 times the job's median step."""

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
