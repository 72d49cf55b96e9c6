"""The run configuration's section `job`: a training job on a cluster, whichever cluster it is."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from howdah.config.types import Bytes, Section, Variable, name_of_variable

Place = Literal["yarn", "local", "spark", "ray"]
"""Where a job runs."""


_OWN_PREFIXES = ("HOWDAH_", "HOROVOD_", "OMPI_", "LD_")
_OWN_NAMES = ("HOME", "TMPDIR", "PATH", "PYTHONPATH", "HADOOP_TOKEN_FILE_LOCATION")


class WorkerResources(Section):
    """Resources of one worker (one rank)."""

    memory: Bytes = 6 * 2**30
    """Memory of a worker's container; the NodeManager kills a process that uses more. `howdah
    submit` computes a rank's peak and refuses less: DistilBERT-base with a batch of 32 on 2 workers
    needs 4.5 GiB (elastic 5.3), with micro-batches of 8,192 tokens 7.4 GiB."""
    vcores: int = Field(default=1, ge=1)
    """Vcores of a worker; also the number of its compute threads."""
    gpus: int = Field(default=0, ge=0, le=1)
    """GPUs of a worker (yarn.io/gpu): 0 or 1, since a worker is one rank, which trains on one GPU.
    With 1, a worker that finds no GPU fails: training never falls back to the CPU."""

    @field_validator("gpus", mode="before")
    @classmethod
    def _one_gpu_a_rank(cls, value: Any) -> Any:
        if isinstance(value, int) and value > 1:
            raise ValueError(
                "a worker is one rank and trains on one GPU: the others would be allocated and not"
                f" used; got {value}. Ask for more workers of one GPU each (job.workers)"
            )
        return value


class JobSection(Section):
    """A training job on a cluster (`howdah submit`), whichever cluster it is."""

    on: Place = "yarn"
    """Where `howdah submit` runs the job: YARN; processes of this machine; tasks of a Spark
    application (data.spark.master); actors of a Ray cluster (ray.address)."""
    workers: int = Field(default=2, ge=1)
    """Workers to train with, one rank and one container each."""
    min_workers: int | None = Field(default=None, ge=1)
    """Fewest workers to continue with; if given, the job is elastic. null: `workers`."""
    max_workers: int | None = Field(default=None, ge=1)
    """Most workers to grow to (`howdah scale`); if given, the job is elastic. null: `workers`."""
    commit_every: int = Field(default=50, ge=1)
    """Steps between the copies of its state that a rank of an elastic job keeps in memory: at most
    this many steps are repeated when a worker is lost, and no step before the newest checkpoint."""
    worker: WorkerResources = WorkerResources()
    """A worker's resources."""
    attempts: int = Field(default=2, ge=1)
    """How often the job may begin: of a fixed size, again for a lost worker; on YARN also for a
    lost driver. Each attempt resumes from the newest checkpoint."""
    max_restarts: int = Field(default=10, ge=0)
    """Failed workers of an elastic job that are replaced, in total; preempted ones do not count."""
    node_failures: int = Field(default=3, ge=1)
    """Failures of workers on a node after which the job takes no more containers there, as long as
    another of its nodes has fewer failures. A full disk, a broken GPU or a missing library ends a
    worker, not the job; the same error at the same step on two nodes ends the job."""
    env: dict[Variable, str] = {}
    """Additional environment variables of the training processes. For secrets use `secret_env`."""
    secret_env: list[Variable] = []
    """Names of environment variables whose values are secrets. `howdah submit` reads them from its
    own environment; only the training processes get them, by a file that only the job's containers
    get."""
    controller: Literal["gloo", "mpi"] = "gloo"
    """How Horovod's ranks find each other; mpi needs yarn.environment: path and a fixed world
    size."""
    network_interface: str | None = None
    """Network interface for the workers' traffic; null: the one that routes to the driver."""
    ports: str | None = Field(default=None, pattern=r"^\d+-\d+$")
    """Ports to listen on, first and last, such as 30000-30100; null: any free port."""
    gang_seconds: float = Field(default=300.0, gt=0, allow_inf_nan=False)
    """How long a start waits for all its workers before it releases those that it has."""
    gang_attempts: int = Field(default=10, ge=1)
    """How often the workers are requested again, each time after a random pause."""
    hang_seconds: float = Field(default=45.0, ge=5, allow_inf_nan=False)
    """Time without a message or without progress after which a worker counts as hanging and is
    replaced. A phase may take longer as long as it progresses: rows evaluated, bytes transferred
    and attempts to reach storage count. The limit is ten times as long while a worker computes
    without reports, as in its first step, and ten usual steps inside a step."""
    contact_seconds: float = Field(default=60.0, ge=5, le=600, allow_inf_nan=False)
    """How long the job's driver and a worker's agent tolerate lost contact (a switch fails over, a
    machine migrates or swaps). After that the driver gives the worker up, and the agent ends its
    training. At most 600, after which YARN itself gives up a master or a node."""
    gloo_timeout_seconds: float | None = Field(default=None, ge=1, allow_inf_nan=False)
    """How long Gloo waits for another rank, when a world is formed and for each message
    (HOROVOD_GLOO_TIMEOUT_SECONDS); at most hang_seconds. null: two thirds of hang_seconds, but
    at least 10 s if hang_seconds allows it, so that a rank gives up on a lost one before it counts
    as hanging itself."""

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
    def gloo_timeout(self) -> float:
        """Seconds that Gloo waits for another rank: gloo_timeout_seconds, or its default."""
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

    @field_validator("env")
    @classmethod
    def _names_of_variables(cls, value: dict[str, str]) -> dict[str, str]:
        return {name_of_variable(name): each for name, each in value.items()}

    @field_validator("secret_env")
    @classmethod
    def _names_of_secrets(cls, value: list[str]) -> list[str]:
        for name in value:
            name_of_variable(name)
            if name.startswith(_OWN_PREFIXES) or name in _OWN_NAMES:
                raise ValueError(f"{name} is set in each container by Howdah: it is no secret")
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
        if self.gloo_timeout > self.hang_seconds:
            raise ValueError(
                f"job.gloo_timeout_seconds ({self.gloo_timeout_seconds:g}) must not exceed"
                f" job.hang_seconds ({self.hang_seconds:g}): a rank that waits for a vanished one"
                " would be killed as hanging before Gloo's wait ends. Lower the first, leave it out"
                " (two thirds of job.hang_seconds), or raise the second"
            )
        if self.port_range is not None:
            first, last = self.port_range
            if not 1024 <= first <= last <= 65535:
                raise ValueError(
                    f"job.ports must be two ports from 1024 to 65535 in order; got {self.ports}"
                )
        return self
