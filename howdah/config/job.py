"""The run configuration's sections `job`, a training job on whichever cluster, and `ray`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from howdah.config.types import Bytes, Cluster, Rare, Section, Usual, Variable, name_of_variable
from howdah.core.processes import limit

ClusterName = Literal["yarn", "local", "spark", "ray"]
"""Where a job runs."""


_RESERVED_PREFIXES = ("HOWDAH_", "HOROVOD_", "OMPI_", "LD_")
_RESERVED_NAMES = ("HOME", "TMPDIR", "PATH", "PYTHONPATH", "HADOOP_TOKEN_FILE_LOCATION")


_ELASTIC_RESTARTS = 10
"""A job of days loses a worker now and then, and goes on within seconds; a worker that fails at
once each time ends the job within minutes."""


class WorkerResources(Section):
    """Resources of one worker (one rank)."""

    memory: Usual[Bytes] = 6 * 2**30
    """Memory of a worker's container; the NodeManager kills a process that uses more. `howdah
    submit` computes a rank's peak and refuses less: DistilBERT-base with a batch of 32 on 2 workers
    needs 4.5 GiB (elastic 5.3), with micro-batches of 8,192 tokens 7.4 GiB."""
    vcores: int = Field(default=1, ge=1)
    """Vcores of a worker, and the number of its compute threads."""
    gpus: int = Field(default=0, ge=0, le=1)
    """GPUs of a worker (yarn.io/gpu): 0 or 1, since a worker is one rank, which trains on one GPU.
    With 1, a worker that finds no GPU fails: training never falls back to the CPU."""

    @field_validator("gpus", mode="before")
    @classmethod
    def _one_gpu_a_rank(cls, value: Any) -> Any:
        if isinstance(value, int) and value > 1:
            raise ValueError(
                "a worker is one rank and trains on one GPU: the others would be allocated and not"
                f" used; got {value}. Request more workers with one GPU each (job.workers)"
            )
        return value


class JobSection(Section):
    """A training job on a cluster (`howdah submit`), whichever cluster it is."""

    on: Usual[ClusterName] = "yarn"
    """Where `howdah submit` runs the job. yarn: containers of YARN. local: processes of this
    machine. spark: tasks of a Spark application (data.spark.master). ray: actors of a Ray cluster
    (ray.address)."""
    workers: Usual[int] = Field(default=2, ge=1)
    """Number of workers to train with, one rank and one container each."""
    min_workers: Usual[int | None] = Field(default=None, ge=1)
    """Fewest workers to continue with. If it is given, the job is elastic. null: as job.workers."""
    max_workers: Usual[int | None] = Field(default=None, ge=1)
    """Most workers to grow to (`howdah scale`). If it is given, the job is elastic. null: as
    job.workers."""
    commit_every: Rare[int] = Field(default=50, ge=1)
    """Steps between the copies of their state that ranks of an elastic job keep in memory. When a
    worker is lost, at most this many steps are repeated, none from before the newest checkpoint."""
    worker: WorkerResources = WorkerResources()
    """A worker's resources."""
    max_restarts: int | None = Field(default=None, ge=0)
    """Number of failures that the job survives. An elastic job replaces that many failed workers in
    total; workers that the cluster preempts do not count. A job with a fixed number of workers
    restarts up to that many times from its newest checkpoint after it has lost a worker or, on
    YARN, its driver. null: 10 for an elastic job, 1 otherwise."""
    env: dict[Variable, str] = {}
    """Additional environment variables of the training processes. Put secrets in
    job.secret_env."""
    secret_env: list[Variable] = []
    """Names of environment variables whose values are secrets. `howdah submit` reads them from its
    own environment. Only the training processes get them, through a file that is shipped only to
    the job's containers."""
    controller: Rare[Literal["gloo", "mpi"]] = "gloo"
    """How Horovod's ranks find each other. mpi needs yarn.python and a fixed number of workers."""
    network_interface: Rare[str | None] = None
    """Network interface for the workers' traffic. null: the one that routes to the driver."""
    ports: Rare[str | None] = Field(default=None, pattern=r"^\d+-\d+$")
    """Range of ports to listen on, first and last, such as 30000-30100. null: any free port."""
    gang_seconds: Rare[float] = Field(default=300.0, gt=0, allow_inf_nan=False)
    """Seconds that a start waits for all its workers before it releases those that it has, so that
    two jobs which each hold half of a queue do not block each other. It requests them ten times
    in all, each time after a random pause."""
    hang_seconds: Rare[float] = Field(default=45.0, ge=5, allow_inf_nan=False)
    """Time without a message or without progress after which a worker counts as hanging and is
    replaced. A phase may take longer as long as it progresses: rows evaluated, bytes transferred
    and attempts to reach storage count. The limit is ten times as long while a worker computes
    without reports, as in its first step, and ten usual steps inside a step."""

    @property
    def elastic(self) -> bool:
        """Whether the job may shrink and grow."""
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
    def restarts(self) -> int:
        """Number of failures that the job survives."""
        if self.max_restarts is not None:
            return self.max_restarts
        return _ELASTIC_RESTARTS if self.elastic else 1

    @property
    def attempts(self) -> int:
        """How often the job may begin. An elastic job begins once more, for a lost driver."""
        return 1 + (min(1, self.restarts) if self.elastic else self.restarts)

    @property
    def gloo_timeout(self) -> float:
        """Seconds that Gloo waits for another rank, when a world is formed and for each message.

        They are fewer than hang_seconds, so that a rank gives up on a lost one before it counts as
        hanging itself, and at least 10 if hang_seconds allows it.
        """
        seconds = min(self.hang_seconds, max(10.0, self.hang_seconds * 2 / 3))
        return limit("gloo_timeout_seconds", seconds)

    @property
    def port_range(self) -> range | None:
        """The ports of `ports`."""
        if self.ports is None:
            return None
        first, last = self.ports.split("-")
        return range(int(first), int(last) + 1)

    @field_validator("env")
    @classmethod
    def _names_of_variables(cls, value: dict[str, str]) -> dict[str, str]:
        return {name_of_variable(name): each for name, each in value.items()}

    @field_validator("secret_env")
    @classmethod
    def _names_of_secrets(cls, value: list[str]) -> list[str]:
        for name in value:
            name_of_variable(name)
            if name.startswith(_RESERVED_PREFIXES) or name in _RESERVED_NAMES:
                raise ValueError(f"{name} is set in each container by Howdah: it is not a secret")
        if len(set(value)) != len(value):
            raise ValueError("job.secret_env names a variable twice")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> JobSection:
        if not self.fewest <= self.workers <= self.most:
            raise ValueError(
                "job.min_workers, job.workers and job.max_workers must ascend in this order; got"
                f" {self.fewest}, {self.workers}, {self.most}"
            )
        if both := sorted(set(self.env) & set(self.secret_env)):
            raise ValueError(f"{', '.join(both)} is in job.env and in job.secret_env")
        if self.controller == "mpi" and self.elastic:
            raise ValueError(
                "job.controller: mpi needs a fixed number of workers (MPI cannot replace a rank)"
            )
        ports = self.port_range
        if ports is not None and not (ports and ports[0] >= 1024 and ports[-1] <= 65535):
            raise ValueError(
                f"job.ports must be two ports from 1024 to 65535 in order; got {self.ports}"
            )
        return self


class RaySection(Section):
    """A Ray cluster."""

    address: Rare[Cluster | None] = None
    """Address host:port of a Ray cluster's head (6379), on whose nodes Howdah is installed. null: a
    Ray that is started on this machine for the job, and ends with it."""
