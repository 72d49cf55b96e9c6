"""A cluster: where an application runs. One class each for YARN, this machine, Spark and Ray.

It checks a configuration, starts its application, and looks up applications. Its counterpart in
the job's driver, the DriverBackend (jobs/backend.py), keeps the containers of a running job.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from howdah.config.model import Config
from howdah.core.activity import Progress
from howdah.jobs.application import Application
from howdah.jobs.record import Record


class Cluster(ABC):
    """A cluster, as one command uses it for one configuration.

    Args:
        config: the configuration; `check` may replace it with one that has absolute paths.
    """

    name: str
    """The value of job.on: yarn, local, spark or ray."""
    kind = "training"
    """The kind of its applications, as in their records."""
    submits_finished = False
    """True: a run that has finished is submitted again and ends at once, since a caller that waits
    for an application's id, as Airflow's operator does, gets one."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @property
    def directory(self) -> str:
        """The directory of the application's record: the run directory, or a served model's."""
        return self.config.run.directory

    def session(self) -> contextlib.AbstractContextManager[None]:
        """Inside, calls have the Kerberos ticket that they need."""
        return contextlib.nullcontext()

    # ---------------------------------------------------------------------------- submission
    @abstractmethod
    def check(self, progress: Progress) -> None:
        """Check everything that can be checked before anything is started.

        Raises:
            ConfigError, DataError, ModelError, StorageError, ClusterError: a check failed.
        """

    @abstractmethod
    def plan(self, progress: Progress) -> dict[str, Any]:
        """What `start` would do after `check`. Nothing is started or uploaded."""

    @abstractmethod
    def plan_lines(self, plan: dict[str, Any]) -> list[str]:
        """A `plan` as text."""

    @abstractmethod
    def start(self, claim: Record, progress: Progress) -> Application:
        """Ship what the application needs, start it and record its id.

        Args:
            claim: the record that this submission has written.
        """

    @abstractmethod
    def announce(self, application: Application, progress: Progress) -> str | None:
        """Wait until users can reach a started or attached application; return its page's URL."""

    @abstractmethod
    def undo(self, claim: Record, progress: Progress) -> bool:
        """End what `start` has started so far; False: its record must stay."""

    def submitter(self) -> str:
        """The application's user as the cluster names it; "" where it does not name users."""
        return ""

    # ------------------------------------------------------------------------------- looking
    @abstractmethod
    def application(self, record: Record) -> Application:
        """The application of a record."""

    @abstractmethod
    def by_id(self, application: str) -> Application | None:
        """The application with an id; None: it is not known here."""

    def in_directory(self, record: Record | None) -> Application | None:
        """The application of `directory` where its record has no id yet, or was removed."""
        return None

    @property
    def user(self) -> str | None:
        """The user whose applications `listed` shows; None: all users', or not known."""
        return None

    @abstractmethod
    def listed(self, *, all_users: bool, finished: bool) -> Sequence[dict[str, Any]]:
        """Rows of `howdah ps`, newest first.

        Args:
            finished: list ended applications too.
        """

    @abstractmethod
    def is_live(self, record: Record) -> bool:
        """True until the record's application has ended."""

    def submitted(self, record: Record) -> str | None:
        """The live application of a submission that was killed before it could record the id."""
        return None

    def unrecorded(self, present: Record | None) -> str | None:
        """A live application of `directory` that `present`, its record, may not name."""
        return None
