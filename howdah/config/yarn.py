"""The run configuration's section `yarn`: what a job has on YARN alone."""

from __future__ import annotations

import re

from pydantic import Field, field_validator, model_validator

from howdah.config.types import AnyPath, Bytes, NodePath, Queue, Rare, Section, User, Usual


class DriverResources(Section):
    """Resources of the job's driver, which does not train."""

    memory: Rare[Bytes] = 2**30
    """Memory of the driver's container, including skein's JVM (below 200 MiB)."""


class YarnSection(Section):
    """How a job runs on YARN (`howdah submit`)."""

    driver: DriverResources = DriverResources()
    """The driver's resources."""
    queue: Usual[Queue | None] = None
    """YARN queue of the job. null: the cluster's default."""
    node_label: Rare[str | None] = None
    """Label of the nodes to run on. null: the queue's default."""
    priority: Rare[int | None] = Field(default=None, ge=0)
    """Priority among the queue's applications, set right after the submission. null: 0."""
    tags: Rare[list[str]] = []
    """Additional tags of the application, of ASCII without blanks and commas."""
    view_users: Rare[list[User]] = []
    """Users who may see the application and its logs, besides its owner; '*': everyone."""
    modify_users: Rare[list[User]] = []
    """Users who may kill the application, besides its owner; '*': everyone."""
    files: Rare[list[AnyPath]] = []
    """Files (any storage) that are put into the working directory of each container."""
    python: Rare[NodePath | None] = None
    """Python interpreter on every node that has Howdah's packages. null: the nodes need no Python,
    since an archive with one is shipped to them."""
    staging: Rare[AnyPath | None] = None
    """Directory on the cluster's storage for files that jobs and Spark applications are shipped,
    which are named by their hashes. null: .howdah in the user's home of fs.defaultFS."""
    keytab: Rare[AnyPath | None] = None
    """Local keytab file for a Kerberised cluster. null: the ticket cache is used."""
    principal: Rare[User | None] = None
    """Kerberos principal of yarn.keytab."""

    @property
    def login(self) -> tuple[str | None, str | None, str]:
        """What howdah/hadoop/kerberos.py `logged_in` takes."""
        return self.keytab, self.principal, "yarn.keytab"

    @field_validator("tags")
    @classmethod
    def _tags_of_yarn(cls, value: list[str]) -> list[str]:
        for tag in value:
            if not re.fullmatch(r"[!-+\--~]{1,100}", tag):
                raise ValueError(
                    f"a tag has 1 to 100 characters of ASCII, no blanks and commas; got {tag!r}"
                )
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> YarnSection:
        if (self.keytab is None) != (self.principal is None):
            raise ValueError("give yarn.keytab and yarn.principal together, or neither")
        return self
