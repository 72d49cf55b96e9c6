"""The run configuration's section `yarn`: how a job runs there (config_model.py has the others)."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from howdah.config_types import Bytes, Section

__all__ = ["DriverResources", "WorkerResources", "YarnSection"]


class WorkerResources(Section):
    """What one worker (one rank) asks of YARN."""

    memory: Bytes = 6 * 2**30
    """Memory of its container; a process above it is killed by the NodeManager. `howdah submit`
    computes what a rank takes at its peak and refuses less: DistilBERT-base with a batch of 32 on 2
    workers 4.5 GiB (elastic 5.3), with micro-batches of 8,192 tokens 7.4 GiB."""
    vcores: int = Field(default=1, ge=1)
    """Its vcores, which are its threads too."""
    gpus: int = Field(default=0, ge=0, le=1)
    """Its GPUs (yarn.io/gpu): 0 or 1, since a worker is one rank and a rank trains on one GPU.
    With 1, a worker that finds no GPU is refused: training never falls back to the CPU."""

    @field_validator("gpus", mode="before")
    @classmethod
    def _one_gpu_a_rank(cls, value: Any) -> Any:
        if isinstance(value, int) and value > 1:
            raise ValueError(
                "a worker is one rank and trains on one GPU: the others would be held and never"
                f" used; got {value}. Ask for more workers of one GPU each (yarn.workers)"
            )
        return value


class DriverResources(Section):
    """What the job's driver asks of YARN: it starts no framework and trains nothing."""

    memory: Bytes = 2**30
    """Memory of its container, skein's JVM (below 200 MiB) included."""
    vcores: int = Field(default=1, ge=1)
    """Its vcores."""


class YarnSection(Section):
    """How a job runs on YARN (`howdah submit`)."""

    workers: int = Field(default=2, ge=1)
    """Workers to train with, one rank and one container each."""
    min_workers: int | None = Field(default=None, ge=1)
    """Fewest workers to go on with; given, the job is elastic. None: as many as `workers`."""
    max_workers: int | None = Field(default=None, ge=1)
    """Most workers to grow to (`howdah scale`); given, the job is elastic. None: `workers`."""
    commit_every: int = Field(default=50, ge=1)
    """Steps after which an elastic job's survivors keep a copy of their state in memory: the most
    that are repeated when a worker is lost."""
    worker: WorkerResources = WorkerResources()
    """A worker's resources."""
    driver: DriverResources = DriverResources()
    """The driver's resources."""
    queue: str | None = None
    """Queue; none: the cluster's default."""
    node_label: str | None = None
    """Label of the nodes to run on; none: the queue's default."""
    priority: int | None = Field(default=None, ge=0)
    """Priority among the queue's applications, set right after the submission; none: 0."""
    attempts: int = Field(default=2, ge=1)
    """How often YARN may start the application; each attempt resumes from the newest checkpoint."""
    max_restarts: int = Field(default=10, ge=0)
    """Failed workers of an elastic job that are replaced, in all; preempted ones do not count."""
    tags: list[str] = []
    """More tags of the application: ASCII without blanks and commas."""
    view_users: list[str] = []
    """Users who may see the application and its logs, besides its owner; '*': everyone."""
    modify_users: list[str] = []
    """Users who may kill the application, besides its owner; '*': everyone."""
    env: dict[str, str] = {}
    """More environment variables of the training processes; no place for secrets."""
    files: list[str] = []
    """Files (any storage) put into each container's working directory under their own names."""
    environment: Literal["archive", "path"] = "archive"
    """Where the nodes' Python comes from: an archive that is shipped by its hash, or `python`."""
    python: str | None = None
    """Python interpreter on every node, with Howdah's packages (environment: path)."""
    controller: Literal["gloo", "mpi"] = "gloo"
    """What Horovod's ranks find each other by; mpi needs environment: path and a fixed size."""
    network_interface: str | None = None
    """Interface of the workers' traffic; none: the one that routes to the driver."""
    ports: str | None = Field(default=None, pattern=r"^\d+-\d+$")
    """First and last port, such as 30000-30100, for all that listens; none: any free port."""
    gang_seconds: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    """How long all workers of a start are waited for before those there are given back."""
    gang_attempts: int = Field(default=10, ge=1)
    """How often the workers are asked for again, after a random pause."""
    hang_seconds: float = Field(default=45.0, ge=5, allow_inf_nan=False)
    """Silence, or time without progress, after which a worker is taken to hang, and is replaced. A
    phase may last as long as it gets on: rows evaluated, bytes moved and attempts to reach storage
    count. Ten times this while it computes without a word, as in its first step, and ten usual
    steps inside a step."""
    gloo_timeout_seconds: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    """How long Gloo waits for another rank, when a world is formed and for each message
    (HOROVOD_GLOO_TIMEOUT_SECONDS): at most hang_seconds. None: two thirds of hang_seconds, or
    10 s where hang_seconds allows it: a rank gives a vanished one up before it is taken to hang."""
    staging: str | None = None
    """Directory on the cluster's storage for what is shipped, each by its hash; none: .howdah in
    the user's home of fs.defaultFS."""
    keytab: str | None = None
    """Keytab file of this machine for a Kerberised cluster; none: the ticket cache."""
    principal: str | None = None
    """Principal of the keytab."""

    @property
    def elastic(self) -> bool:
        """True if the job may shrink and grow."""
        return self.min_workers is not None or self.max_workers is not None

    @property
    def fewest(self) -> int:
        """Fewest workers to train with."""
        return self.workers if self.min_workers is None else self.min_workers

    @property
    def most(self) -> int:
        """Most workers to train with."""
        return self.workers if self.max_workers is None else self.max_workers

    @property
    def gloo_timeout(self) -> float:
        """Seconds that Gloo waits for another rank: gloo_timeout_seconds, or by hang_seconds."""
        if self.gloo_timeout_seconds is None:
            return min(self.hang_seconds, max(10.0, self.hang_seconds * 2 / 3))
        return self.gloo_timeout_seconds

    @property
    def port_range(self) -> tuple[int, int] | None:
        """First and last of `ports`."""
        if self.ports is None:
            return None
        first, last = self.ports.split("-")
        return int(first), int(last)

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

    @field_validator("env")
    @classmethod
    def _names_of_variables(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not (name.isascii() and name.isidentifier()):
                raise ValueError(f"no name of an environment variable: {name!r}")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> YarnSection:
        if not self.fewest <= self.workers <= self.most:
            raise ValueError(
                "yarn.min_workers, yarn.workers and yarn.max_workers must rise in this order; got"
                f" {self.fewest}, {self.workers}, {self.most}"
            )
        if self.environment == "path" and self.python is None:
            raise ValueError("yarn.environment: path needs yarn.python, the nodes' interpreter")
        if self.controller == "mpi" and (self.elastic or self.environment != "path"):
            raise ValueError(
                "yarn.controller: mpi needs yarn.environment: path (MPI must be installed on the"
                " nodes) and a fixed number of workers (MPI cannot replace a rank)"
            )
        if self.gloo_timeout > self.hang_seconds:
            raise ValueError(
                f"yarn.gloo_timeout_seconds ({self.gloo_timeout_seconds:g}) must not exceed"
                f" yarn.hang_seconds ({self.hang_seconds:g}): a rank that waits for a vanished one"
                " would be killed as hanging before Gloo gives the wait up. Lower the first, leave"
                " it out (two thirds of yarn.hang_seconds), or raise the second"
            )
        if (self.keytab is None) != (self.principal is None):
            raise ValueError("give yarn.keytab and yarn.principal together, or neither")
        if self.port_range is not None:
            first, last = self.port_range
            if not 1024 <= first <= last <= 65535:
                raise ValueError(
                    f"yarn.ports must be two ports from 1024 to 65535 in order; got {self.ports}"
                )
        return self
