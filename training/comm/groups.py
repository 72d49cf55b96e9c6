"""Which ranks divide the rows of a step, and which divide the model (training.parallel)."""

from __future__ import annotations

from dataclasses import dataclass

from howdah.config.model import ParallelSection
from howdah.errors import ConfigError
from howdah.training.comm.base import Comm

__all__ = ["Groups", "check_ranks"]


@dataclass(frozen=True, kw_only=True)
class Groups:
    """The worlds that a rank is in at the same time."""

    world: Comm
    """All ranks."""
    rows: Comm
    """The ranks that divide the rows: each has other ones."""
    model: Comm | None
    """The ranks that divide the model, all of which enter each forward and backward pass; None:
    each rank has all of it."""

    @classmethod
    def of(cls, world: Comm, parallel: ParallelSection) -> Groups:
        """The groups of a world. Every rank enters.

        Raises:
            ConfigError: the ranks cannot be divided so.
        """
        check_ranks(parallel, world.size)
        if parallel.copies > 1:
            # Neighbours divide the model: a launcher starts neighbours on one node.
            rows, model = world.split(parallel.copies)
            return cls(world=world, rows=rows, model=model)
        full = parallel.shard == "full" and world.size > 1
        return cls(world=world, rows=world, model=world if full else None)

    @property
    def copies(self) -> int:
        """Ranks that have the same rows."""
        return self.world.size // self.rows.size

    @property
    def first_copy(self) -> bool:
        """This rank is the first of those that have the same rows."""
        return self.copies == 1 or self.model.rank == 0


def check_ranks(parallel: ParallelSection, ranks: int) -> None:
    """Refuse a world whose ranks cannot be divided as `training.parallel` says.

    Raises:
        ConfigError: `tensor` or `pipeline` does not divide their number.
    """
    if ranks % parallel.copies:
        raise ConfigError(
            "the ranks cannot be divided into groups of which each has the whole model",
            where=parallel.model_key,
            expected=f"a divisor of {ranks}, the number of ranks",
            got=str(parallel.copies),
            remedy=f"start a multiple of {parallel.copies} ranks (howdah train --np), or lower it",
        )
