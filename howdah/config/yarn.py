"""The run configuration's section `yarn`: what a job has on YARN alone."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from howdah.config.types import AnyPath, Bytes, NodePath, Queue, Section, User


class DriverResources(Section):
    """Resources of the job's driver, which does not train."""

    memory: Bytes = 2**30
    """Memory of the driver's container, including skein's JVM (below 200 MiB)."""
    vcores: int = Field(default=1, ge=1)
    """Vcores of the driver."""


class YarnSection(Section):
    """How a job runs on YARN (`howdah submit`)."""

    driver: DriverResources = DriverResources()
    """The driver's resources."""
    queue: Queue | None = None
    """Queue; null: the cluster's default."""
    node_label: str | None = None
    """Label of the nodes to run on; null: the queue's default."""
    priority: int | None = Field(default=None, ge=0)
    """Priority among the queue's applications, set right after the submission; null: 0."""
    tags: list[str] = []
    """Additional tags of the application: ASCII without blanks and commas."""
    view_users: list[User] = []
    """Users who may see the application and its logs, besides its owner; '*': everyone."""
    modify_users: list[User] = []
    """Users who may kill the application, besides its owner; '*': everyone."""
    files: list[AnyPath] = []
    """Files (any storage) that are put into each container's working directory."""
    environment: Literal["archive", "path"] = "archive"
    """The nodes' Python: an archive that is shipped to them, or the interpreter at `python`."""
    python: NodePath | None = None
    """Python interpreter on every node, with Howdah's packages (environment: path)."""
    staging: AnyPath | None = None
    """Directory on the cluster's storage for shipped files, named by their hashes; null: .howdah in
    the user's home of fs.defaultFS."""
    keytab: AnyPath | None = None
    """Local keytab file for a Kerberised cluster; null: the ticket cache."""
    principal: User | None = None
    """Principal of the keytab."""

    @property
    def login(self) -> tuple[str | None, str | None, str]:
        """What howdah/hadoop/kerberos.py `logged_in` takes."""
        return self.keytab, self.principal, "yarn.keytab"

    @field_validator("tags")
    @classmethod
    def _tags_of_yarn(cls, value: list[str]) -> list[str]:
        for tag in value:
            if not (tag.isascii() and tag.isprintable() and 0 < len(tag) <= 100) or set(tag) & set(
                " ,"
            ):
                raise ValueError(
                    f"a tag is 1 to 100 of ASCII without blanks and commas; got {tag!r}"
                )
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> YarnSection:
        if self.environment == "path" and self.python is None:
            raise ValueError("yarn.environment: path needs yarn.python, the nodes' interpreter")
        if (self.keytab is None) != (self.principal is None):
            raise ValueError("give yarn.keytab and yarn.principal together, or neither")
        return self
