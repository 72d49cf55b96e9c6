"""The run configuration's section `data.append`: versions that add a day to the version before."""

from __future__ import annotations

from pydantic import Field

from howdah.config.splits import HeldOut
from howdah.config.types import Section


class AppendOptions(Section):
    enabled: bool = False
    """Append the source's rows to the newest version of `dataset`, as a part of a new version. Old
    rows keep their split; the first version starts the ledger that new rows are compared with."""
    part: str | None = Field(default=None, pattern=r"^[^\s/][^/]*$")
    """Name of the part; null: the name of the part that was read from this source, else the
    partitions' values (ds=2026-01-31), else the source's last name, with a hash behind it where
    another source has that name. A part whose source has changed is replaced: rows that stay keep
    their split."""
    frozen: list[HeldOut] = []
    """Splits that get no new rows after the first version, so that all later models are measured on
    the same ones. New rows like theirs are rejected (held_out_copy)."""
    buckets: int = Field(default=16, ge=1, le=4096)
    """Buckets of the ledger, fixed by the first version: tasks that compare a new part with it."""
