"""The run configuration's sections, as frozen pydantic models.

One YAML file configures everything. A key with the meaning of one of Hugging Face's
`TrainingArguments` has its name. Each field's docstring is its help text: `howdah config explain
KEY` and the Airflow trigger form show it.
"""

from __future__ import annotations

import os
import re
from typing import Any, Literal

from pydantic import Field, model_validator

from howdah.config.data import DataSection
from howdah.config.job import JobSection, RaySection
from howdah.config.metric_table import METRICS, SELECTABLE, metrics_of
from howdah.config.options.alerts import AlertsSection
from howdah.config.options.drift import DriftSection
from howdah.config.options.export import ExportSection
from howdah.config.options.publish import GateSection, PublishSection
from howdah.config.options.serve import ServeSection
from howdah.config.splits import TEST, VALIDATION, HeldOut
from howdah.config.tasks import TASKS
from howdah.config.training import TrainingSection
from howdah.config.tune import TuneSection
from howdah.config.types import (
    Checkpoint,
    Mode,
    Model,
    RankPath,
    Rare,
    Revision,
    Section,
    Tracking,
    User,
    Usual,
)
from howdah.config.yarn import YarnSection

_STEP = re.compile(r"step-\d+")


def is_step(name: str) -> bool:
    """True if this names a step of the run, `step-60`, and is not the path of a checkpoint."""
    return bool(_STEP.fullmatch(name))


# ------------------------------------------------------------------------------------- run
class RunSection(Section):
    name: Usual[str] = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run: letters, digits, '.', '_' and '-'."""
    directory: Usual[RankPath] = "runs/run"
    """Run directory (any storage) for config, logs, metrics, checkpoints, export, predictions."""
    user: Rare[User | None] = None
    """User to run as on the cluster (doAs), which must allow you to impersonate that user."""
    mode: Mode = "0750"
    """Permission bits of a new run, checkpoint or dataset directory. An existing directory keeps
    its own. No file that a command writes is open to more users than this, predictions, reports and
    published models included."""
    storage_retry_seconds: Rare[float | None] = Field(default=None, ge=0.0, allow_inf_nan=False)
    """Seconds to retry while storage does not answer (a NameNode restarts or is in safe mode).
    null: 120 for commands; 1,800 where giving up would lose a run: in the containers of a job or an
    ETL on YARN, and in training once its steps have begun."""


# ----------------------------------------------------------------------------------- model
class ModelSection(Section):
    base: Usual[Model] = "distilbert-base-uncased"
    """Base model (DistilBERT, BERT, RoBERTa, XLM-RoBERTa, ViT): a directory (any storage), a
    published model (NAME or NAME@3 below publish.directory, or its path) or a hub name."""
    revision: Rare[Revision | None] = None
    """Revision of a hub model: a branch, tag or commit."""
    init_from: RankPath | None = None
    """Model whose weights a run begins with: a published model (NAME or NAME@3 below
    publish.directory, or its path), an export or a run (any storage). The dataset must have all of
    its labels, and may add new ones. Name the version (NAME@3) if the run may be resumed after the
    next publication."""
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Dropout rate of the transformer, of its attention weights and before the classifier. null:
    the base model's rates."""
    freeze_embeddings: bool = False
    """Whether the embeddings are left untrained."""
    freeze_layers: int = Field(default=0, ge=0)
    """Number of transformer layers, from the first one, that are left untrained."""


class CheckpointSection(Section):
    directory: Rare[RankPath | None] = None
    """Directory of the checkpoints (any storage); null: <run.directory>/checkpoints."""
    every_minutes: Usual[float | None] = Field(default=10.0, gt=0)
    """Minutes between checkpoints. null: no checkpoints by time."""
    every_steps: int | None = Field(default=None, ge=1)
    """Steps between checkpoints, in addition to those by time. null: no checkpoints by steps."""
    every_epoch: bool = True
    """Whether a checkpoint is saved at the end of each epoch."""
    keep: Usual[int] = Field(default=3, ge=2)
    """Number of newest checkpoints to keep, besides the best one. It is at least 2, since the
    newest one may be incomplete when a save is interrupted."""
    resume: Usual[Checkpoint] = "auto"
    """Checkpoint to resume from. auto: the newest complete one, if there is any. never: none.
    Otherwise one of this run's by its name, such as step-60, or the path of another."""
    # Twice as long as one save retries in a container: one failed save does not end a run.
    max_failure_minutes: Rare[float | None] = Field(default=60.0, gt=0, allow_inf_nan=False)
    """Minutes for which saves may fail because storage is full or does not answer, counted from the
    beginning of the first failed one; then training stops. Until then it continues with a warning,
    and tries again within a minute. null: no limit."""
    grace_seconds: Rare[float] = Field(default=30.0, gt=0)
    """Seconds for rank 0 to save when the job is stopped or has lost another rank, with `howdah
    train` and on YARN. Bare launchers have their own limits."""

    @property
    def failure_seconds(self) -> float | None:
        """Seconds for which saves may keep failing; None: no limit."""
        return None if self.max_failure_minutes is None else 60.0 * self.max_failure_minutes


class EvaluationSection(Section):
    every_steps: int | None = Field(default=None, ge=1)
    """Steps between evaluations on validation. null: one at the end of each epoch."""
    metric: Usual[Literal[SELECTABLE]] = "macro_f1"
    """Metric that chooses the best checkpoint and drives early stopping. If it is not given:
    micro_f1 for data.task multi_label, mse for regression."""
    splits: Usual[list[HeldOut]] = [VALIDATION, TEST]
    """Splits that are evaluated at the end."""
    max_rows: Rare[int | None] = Field(default=None, ge=1)
    """Most rows of each evaluation during training; the final one uses all rows. null: all."""


class MlflowOptions(Section):
    uri: Tracking
    """URI of the MLflow tracking server, to which a run of all ranks is logged, in the experiment
    MLFLOW_EXPERIMENT_NAME (howdah if it is not set)."""

    @property
    def experiment(self) -> str:
        """Name of the experiment: what MLflow's own variable says, else howdah."""
        return os.environ.get("MLFLOW_EXPERIMENT_NAME") or "howdah"


class TrackingSection(Section):
    tensorboard: bool = True
    """Whether TensorBoard events are written to <run.directory>/tensorboard."""
    mlflow: MlflowOptions | None = None
    """Also log to MLflow, as one run for all ranks."""
    wandb: Tracking | None = Field(
        default=None, pattern=r"^(?:[A-Za-z0-9._-]+/)?[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"
    )
    """Project of Weights & Biases, PROJECT or TEAM/PROJECT, to which the run is also logged, as one
    run for all ranks. WANDB_API_KEY, WANDB_BASE_URL and WANDB_MODE (offline: without a network) are
    those of W&B."""


class ReportSection(Section):
    """The pages: data report, run report, drift."""

    texts: Rare[Literal["masked", "plain", "none"]] = "masked"
    """Texts in all pages. masked: samples, worst rows, suspected labels and confused rows, with
    mail addresses and phone numbers masked. plain: the texts as they are. none: no texts; rows
    show only their ids."""


class ScoreSection(Section):
    """Scoring partitions of a Hive table (`howdah score`), and predictions (`howdah predict`)."""

    max_error_fraction: float = Field(default=0.05, ge=0.0, le=1.0)
    """Largest fraction of rows with an error (a null or empty text). With more, `howdah score` does
    not replace the partition, and `howdah predict` writes all rows and ends with exit code 3. 1:
    any number of rows."""


class Config(Section):
    """The whole run configuration."""

    run: RunSection = RunSection()
    """The run's name and directory."""
    data: DataSection = DataSection()
    """Source, cleaning and dataset."""
    model: ModelSection = ModelSection()
    """Base model."""
    training: TrainingSection = TrainingSection()
    """Training."""
    checkpoint: CheckpointSection = CheckpointSection()
    """Checkpoints."""
    evaluation: EvaluationSection = EvaluationSection()
    """Evaluation."""
    report: ReportSection = ReportSection()
    """The run's page."""
    export: ExportSection = ExportSection()
    """What the trained model is written as."""
    gate: GateSection = GateSection()
    """Metrics that a model must reach to be published."""
    publish: PublishSection = PublishSection()
    """Published models."""
    tracking: TrackingSection = TrackingSection()
    """TensorBoard, MLflow and Weights & Biases."""
    job: JobSection = JobSection()
    """Jobs on a cluster."""
    yarn: YarnSection = YarnSection()
    """Settings of jobs on YARN."""
    ray: RaySection = RaySection()
    """The Ray cluster of jobs on Ray."""
    tune: TuneSection = TuneSection()
    """Hyperparameter studies."""
    drift: DriftSection = DriftSection()
    """When scored rows count as drifted."""
    alerts: AlertsSection = AlertsSection()
    """Who is informed of failures, stalls, missed gates and drift."""
    score: ScoreSection = ScoreSection()
    """Scoring partitions of a Hive table."""
    serve: ServeSection = ServeSection()
    """The server of a published model."""

    @property
    def most_open(self) -> int:
        """Permission bits that no new file or directory exceeds."""
        return int(self.run.mode, 8)

    @model_validator(mode="before")
    @classmethod
    def _metric_of_the_task(cls, raw: Any) -> Any:
        """The default metric is the task's."""
        if not isinstance(raw, dict):
            return raw
        data, evaluation = raw.get("data"), raw.get("evaluation") or {}
        task = data.get("task") if isinstance(data, dict) else getattr(data, "task", None)
        if (
            not isinstance(task, str)
            or task not in TASKS
            or not isinstance(evaluation, dict)
            or "metric" in evaluation
        ):
            return raw
        return {**raw, "evaluation": {**evaluation, "metric": TASKS[task].metric}}

    @model_validator(mode="after")
    def _keys_of_the_task(self) -> Config:
        task = self.data.task
        of_task = metrics_of(task)
        named = {"evaluation.metric": [self.evaluation.metric], "gate.minimum": self.gate.minimum}
        named["tune.metric"] = [] if self.tune.metric is None else [self.tune.metric]
        for key, names in named.items():
            for name in names:
                if name in METRICS and name not in of_task:
                    raise ValueError(
                        f"{key} {name} is not computed for data.task {task}; there are"
                        f" {', '.join(of_task)}"
                    )
        if task == "single_label":
            return self
        if self.training.label_smoothing_factor:
            raise ValueError(
                "training.label_smoothing_factor spreads one label over the others: it means"
                f" nothing for data.task {task}; set it to 0"
            )
        if task == "regression" and self.training.class_weights != "none":
            raise ValueError(
                "training.class_weights weigh labels, and data.task regression has none: set it to"
                " none"
            )
        if self.gate.min_over_baseline is not None:
            raise ValueError(
                "gate.min_over_baseline: `howdah evaluate --baseline` has no model for data.task"
                f" {task}; leave it out, or set gate.minimum"
            )
        return self

    @model_validator(mode="after")
    def _across_sections(self) -> Config:
        training = self.training
        if self.data.kind == "image" and training.framework != "torch":
            raise ValueError(
                "data.kind image trains a vision transformer, which only training.framework torch"
                f" supports; set training.framework to torch (got {training.framework})"
            )
        if self.data.kind == "image" and self.gate.min_over_baseline is not None:
            raise ValueError(
                "gate.min_over_baseline is for texts: `howdah evaluate --baseline` has no model of"
                " images; leave it out, or set gate.minimum"
            )
        if training.comm == "torch" and training.framework != "torch":
            raise ValueError(
                "training.comm torch (torch.distributed) works with training.framework torch only;"
                f" {training.framework} needs horovod or auto"
            )
        key = f"training.parallel.shard: {training.parallel.shard}"
        if training.parallel.divides and training.framework != "torch":
            raise ValueError(
                f"{key} works with training.framework torch only; leave it out for"
                f" {training.framework}"
            )
        if training.parallel.divides and self.job.elastic:
            raise ValueError(
                f"{key} is not for elastic jobs: a lost worker's part of the state is in no other"
                " worker's memory. Leave out job.min_workers and job.max_workers, or"
                " training.parallel"
            )
        if training.parallel.divides and training.gradient_compression != "none":
            raise ValueError(
                f"training.gradient_compression: {training.gradient_compression} is for whole"
                f" gradients; leave it out, or {key}"
            )
        if training.parallel.divides and training.lora.rank is not None:
            raise ValueError(
                "training.lora has few gradients and moments, which every rank holds; leave it"
                f" out, or {key}"
            )
        if training.gradient_checkpointing and training.framework == "tensorflow":
            raise ValueError(
                "training.gradient_checkpointing works with training.framework torch only"
            )
        # The tokens of an image follow from the model; training compares them with the dataset's.
        longest = self.data.max_length if self.data.kind == "text" else 0
        if training.max_tokens() < longest:
            raise ValueError(
                f"training.per_device_max_tokens ({training.max_tokens()}) must hold one"
                f" row of data.max_length ({self.data.max_length})"
            )
        if (
            self.evaluation.metric != "loss"
            and self.data.split.validation == 0
            and not self.data.split.given
            and (training.early_stopping.patience is not None)
        ):
            raise ValueError("training.early_stopping needs data.split.validation above 0")
        # With these sections at their defaults it is not a job: `howdah train` may use batch 1.
        of_job = self.job != JobSection() or self.yarn != YarnSection()
        if of_job and self.job.most > training.global_batch_size:
            key = "job.workers" if self.job.max_workers is None else "job.max_workers"
            raise ValueError(
                f"{key} ({self.job.most}) must not exceed training.global_batch_size"
                f" ({training.global_batch_size}): each rank needs a row of every step"
            )
        on_nodes = self.job.on != "local"
        if self.job.controller == "mpi" and on_nodes and self.yarn.python is None:
            raise ValueError(
                "job.controller: mpi needs yarn.python (MPI must be installed on the nodes)"
            )
        if self.publish.mlflow.mode is not None and self.tracking.mlflow is None:
            raise ValueError("publish.mlflow.mode needs tracking.mlflow.uri: the registry's server")
        if self.gate.asks and self.gate.split not in self.evaluation.splits:
            raise ValueError(
                f"gate.split ({self.gate.split}) must be one of evaluation.splits"
                f" ({', '.join(self.evaluation.splits) or 'none'}): the gate needs metrics of it"
            )
        return self

    @property
    def checkpoint_directory(self) -> str:
        """`checkpoint.directory`, or checkpoints/ in the run directory."""
        return self.checkpoint.directory or self.run.directory.rstrip("/") + "/checkpoints"

    def checkpoint_path(self, name: str) -> str:
        """The path of a checkpoint: `step-60` is one of this run's, everything else a path."""
        return f"{self.checkpoint_directory.rstrip('/')}/{name}" if is_step(name) else name

    @property
    def model_directory(self) -> str:
        """Where the model is published: <publish.directory>/<publish.name, else run.name>."""
        name = self.publish.name or self.run.name
        return self.publish.directory.rstrip("/") + "/" + name
