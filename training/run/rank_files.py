"""The files of one rank's process: its record, its failure, and its published log."""

from __future__ import annotations

import os

from howdah import storage
from howdah.training.process import failure
from howdah.training.process.failure import Failure
from howdah.training.run.local_dir import RankRecord
from howdah.training.run.mirror import Mirror


class RankFiles:
    """`ranks/N.json`, `logs/failure.N.json` and `logs/rank.N` of this process.

    Args:
        linked: an agent started this process, which has a log, but neither record nor failure.
    """

    def __init__(
        self, rank: int, local: str, directory: str, mirror: Mirror, *, linked: bool
    ) -> None:
        self._local, self._directory, self._mirror = local, directory, mirror
        self._linked = linked
        self._record = RankRecord.of_this_process(rank)
        self.on_record = False
        """True if the record is written, so that other processes know this one."""
        self._started = "HOWDAH_STARTED" in os.environ and not linked
        self._first_world = 0

    @property
    def shares_names(self) -> bool:
        """True if the files are in the run directory itself, under names that ranks of other
        attempts use, too."""
        return storage.is_local(self._directory) and not self._linked

    @property
    def shown_by_command(self) -> bool:
        """True if `howdah train` started this process and shows the failure that it writes."""
        return self._started and self.on_record

    def put_on_record(self) -> None:
        """Write the record, begin to publish the log, and remove an earlier attempt's failure."""
        failure.clear(self._local, self._record.rank)
        self._record.write(self._local)
        self.on_record = True
        if not storage.is_local(self._directory):  # under the name of other attempts' logs
            name = f"rank.{self._record.rank}"
            log = os.path.join(self._local, "logs", name)
            self._mirror.add(log, storage.join(self._directory, "logs", name))

    def write_failure(self, why: Failure) -> None:
        """Write the failure that ends this process, if it is on record."""
        if self.on_record:
            failure.write(self._local, why)

    def end(self) -> None:
        """Mark the record as ended, if there is one: this process has reported its end."""
        if self.on_record:
            RankRecord(**(self._record.__dict__ | {"ended": True})).write(self._local)

    def enter_world(self, world: int) -> None:
        """Note that a world begins; the first one is part of the output's name."""
        self._first_world = self._first_world or world

    def publish_output(self, rank: int, attempt: int) -> None:
        """Publish this process's output, which is in the agent's log directory, once.

        The file belongs to a process, which may get several ranks: it is named by the first one,
        and by attempt and world if an earlier rank had that name.
        """
        output = os.environ.pop("HOWDAH_LOG", None)
        if output is not None:
            first = attempt == self._first_world == 1
            name = f"rank.{rank}" + ("" if first else f".{attempt}-{self._first_world}")
            self._mirror.add(output, storage.join(self._directory, "logs", name))
