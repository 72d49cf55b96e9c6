"""The run configuration's sections, as frozen pydantic models.

One YAML file configures everything. A key with the meaning of one of Hugging Face's
`TrainingArguments` has its name. Each field's docstring is its help text: `howdah config explain
KEY` and the Airflow trigger form show it.
"""

from __future__ import annotations

import os
import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from howdah.config.data import DataSection
from howdah.config.job import JobSection, RaySection
from howdah.config.launchers import CommChoice
from howdah.config.metric_table import SELECTABLE
from howdah.config.options.alerts import AlertsSection
from howdah.config.options.drift import DriftSection
from howdah.config.options.export import ExportSection
from howdah.config.options.publish import GateSection, PublishSection
from howdah.config.options.serve import ServeSection
from howdah.config.splits import TEST, VALIDATION, HeldOut
from howdah.config.tasks import TASKS, check_run
from howdah.config.tune import TuneSection
from howdah.config.types import (
    Bytes,
    Checkpoint,
    Mode,
    Model,
    NodePath,
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
    publish.directory, or its path), an export or a run (any storage). The dataset has all of its
    labels, and may have new ones. A run that may be resumed after the next publication names the
    version."""
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Dropout rate of the transformer, of its attention weights and before the classifier. null:
    the base model's rates."""
    freeze_embeddings: bool = False
    """Whether the embeddings are left untrained."""
    freeze_layers: int = Field(default=0, ge=0)
    """Number of transformer layers, from the first one, that are left untrained."""


# -------------------------------------------------------------------------------- training
def _fraction_or_rows(value: Any) -> Any:
    """The value as it is: 1.0 is not a number of rows, though it equals 1."""
    if isinstance(value, float) and value >= 1:
        raise ValueError(
            f"a fraction is below 1 (got {value}): leave training.replay out (null) for all older"
            " rows, or write a number of rows without a point"
        )
    return value


LoraModule = Literal["query", "key", "value", "attended", "inner", "outer"]
"""A linear layer of a transformer layer, by its field of LayerNames (data/family_record.py)."""

Replay = Annotated[
    Annotated[float, Field(ge=0, lt=1)] | Annotated[int, Field(ge=0, strict=True)] | None,
    BeforeValidator(_fraction_or_rows),
]


class ParallelSection(Section):
    shard: Rare[Literal["none", "optimizer", "full"]] = "none"
    """What the ranks divide among themselves (framework torch only, not for elastic jobs). none:
    every rank has all of it. optimizer: each rank has AdamW's moments of its part of the weights
    (ZeRO-1), 8 bytes a weight divided by the number of ranks. full: weights and gradients too
    (FSDP2), 16 bytes a weight divided by the number of ranks; each layer is gathered when it
    computes, and its gradient is summed at once, so that each micro-batch (not each step) sends
    half as much again as a step otherwise: let training.per_device_max_tokens hold a rank's rows of
    a step (training.comm: torch only). Checkpoints are the same,
    and a run may go on with another value or number of ranks. The step's result is the same, to
    float32's precision with full."""

    @property
    def divides(self) -> bool:
        """The ranks divide more than the rows."""
        return self.shard != "none"


class LoraSection(Section):
    rank: Rare[int | None] = Field(default=None, ge=1)
    """Rank of low-rank adapters (LoRA), such as 8: they and the classifier are trained, all other
    weights stay as they are, and ranks send a hundredth of the gradient. The export has the
    adapters merged into its weights. Use about ten times the learning rate. null: no adapters."""
    modules: Rare[list[LoraModule]] = Field(default=["query", "value"], min_length=1)
    """Linear layers that get an adapter in each transformer layer that is not frozen."""


class EarlyStopping(Section):
    patience: int | None = Field(default=None, ge=1)
    """Number of consecutive evaluations without improvement after which training stops. null: it
    does not stop early."""


class TrainingSection(Section):
    framework: Usual[Literal["tensorflow", "torch"]] = "tensorflow"
    """Framework that trains the model."""
    comm: Rare[CommChoice] = "auto"
    """Library that carries sums between ranks: horovod, or torch for torch.distributed (framework
    torch only). auto: torch.distributed where torchrun or a similar launcher has started the ranks
    (RANK, WORLD_SIZE, MASTER_ADDR), where torch is installed without Horovod, or, for GPUs, with a
    Horovod built without NCCL; else Horovod. A run may continue with another one."""
    parallel: ParallelSection = ParallelSection()
    """How the state of a model is divided among ranks."""
    gradient_compression: Rare[Literal["none", "bf16", "int8", "auto"]] = "none"
    """Numbers in which gradients cross the network. bf16: half the bytes; each rank's gradient and
    the sum, which is added in float32, are rounded to 8 bits of mantissa. int8: a quarter; what is
    rounded off is sent with a later step, all of it before a checkpoint or an evaluation. auto: the
    one that makes steps shorter, chosen once a run, after its first 11 steps between nodes.
    Weights, moments and checkpoints stay float32. Within one node it only costs time."""
    lora: LoraSection = LoraSection()
    """Low-rank adapters."""
    global_batch_size: Usual[int] = Field(default=32, ge=1)
    """Rows of one optimizer step over all ranks. It does not depend on the world size."""
    per_device_max_tokens: int | None = Field(default=None, ge=128)
    """Most tokens (with padding) of one micro-batch; a rank accumulates gradients over several. A
    step for which memory does not suffice is done again in micro-batches of half the size, on all
    ranks, and so are all later steps (framework torch only, not with training.parallel.shard:
    full). null: 8,192; on a GPU, where they can be halved, 65,536."""
    replay: Rare[Replay] = None
    """How many of an appended dataset's older training rows are trained on in addition to those of
    new parts: a fraction (with a point, below 1) or rows (a whole number), in whole shards chosen
    by the seed. A part is new if the dataset version of the model in model.init_from lacks it;
    without model.init_from only the newest part is new. null: all rows."""
    num_train_epochs: Usual[float] = Field(default=3.0, gt=0, allow_inf_nan=False)
    """Number of epochs; fractions are allowed."""
    max_steps: Usual[int | None] = Field(default=None, ge=1)
    """Number of optimizer steps after which training stops. It overrides num_train_epochs."""
    learning_rate: Usual[float] = Field(default=5e-5, gt=0, lt=1)
    """Peak learning rate."""
    lr_scheduler_type: Literal["linear", "cosine", "constant"] = "linear"
    """Decay of the learning rate after the warm-up, to zero at the last step. constant: no
    decay."""
    warmup_ratio: Usual[float] = Field(default=0.0, ge=0.0, lt=1.0)
    """Fraction of the steps in which the learning rate rises linearly to its peak."""
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    """Decoupled weight decay, which is not applied to biases and norms."""
    max_grad_norm: float = Field(default=1.0, ge=0)
    """Largest global norm of the reduced gradient, which is clipped to it. 0: no clipping."""
    precision: Usual[Literal["auto", "fp32", "bf16", "fp16"]] = "auto"
    """Precision of computations. auto: bf16 if it is faster on all ranks (GPUs of compute
    capability 8.0 and above, processors with AMX, AMD's with AVX512-BF16), else fp32. fp16 uses
    loss scaling, and is for GPUs only. Evaluations during training use this precision; the last
    one, which the gate reads, uses fp32, as the model is served."""
    label_smoothing_factor: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Share of a label that is spread over all labels. 0: no label smoothing."""
    class_weights: Literal["none", "balanced"] | dict[str, float] = "none"
    """Class weights in the loss: balanced, or {label: weight}. A row's whole loss is multiplied by
    its label's weight. (With label smoothing torch's cross_entropy differs: it weights each class's
    term by that class.) With data.task multi_label: weights of the rows that have the label, as
    torch's pos_weight; balanced: rows without it / rows with it."""
    length_window: Rare[int] = Field(default=50, ge=1)
    """Global batches whose rows are sorted by length together, so that a batch has rows of like
    length and little padding. 1: batches of random rows, which learn better where a row's labels go
    with its length, at more padding."""
    gradient_checkpointing: bool = False
    """Whether activations are recomputed to save memory (torch only)."""
    early_stopping: EarlyStopping = EarlyStopping()
    """Early stopping on evaluation.metric."""
    logging_steps: Rare[int] = Field(default=10, ge=1)
    """Number of steps between progress lines."""
    threads_per_rank: Rare[int | None] = Field(default=None, ge=1)
    """Compute threads of a rank. null: the node's cores divided by its ranks."""
    shard_cache_bytes: Rare[Bytes] = 20 * 2**30
    """Disk space for local copies of remote (or compressed) shards on a machine, shared by all runs
    and datasets, e.g. 20 GiB. It must hold two groups of shards (16 shards)."""
    shard_cache_directory: Rare[NodePath | None] = None
    """Local directory of those copies, the same for all ranks of a machine; null:
    $HOWDAH_CACHE/shards, or the user's cache."""
    seed: Usual[int] = Field(default=42, ge=0)
    """Seed of the batch order, the classifier's initial weights and dropout."""

    @property
    def halves_micro_batches(self) -> bool:
        """True if a step for which memory does not suffice is done again in smaller micro-batches.

        With FSDP2 the other ranks would wait inside the pass that failed here; in TensorFlow, in
        the graph that also sums the gradients.
        """
        return self.framework == "torch" and self.parallel.shard != "full"

    def max_tokens(self, *, gpu: bool = False) -> int:
        """Most tokens of one micro-batch, on a GPU before any was too large."""
        if self.per_device_max_tokens is not None:
            return self.per_device_max_tokens
        return 65_536 if gpu and self.halves_micro_batches else 8_192


class CheckpointSection(Section):
    directory: Rare[RankPath | None] = None
    """Directory of the checkpoints (any storage); null: <run.directory>/checkpoints."""
    every_minutes: Usual[float | None] = Field(default=10.0, gt=0)
    """Minutes between checkpoints. null: checkpoints do not follow the time."""
    every_steps: int | None = Field(default=None, ge=1)
    """Steps between checkpoints, in addition to those by time. null: checkpoints do not follow the
    steps."""
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
    """Most rows of each evaluation during training; the last one uses all. null: all rows."""


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
    have their ids alone."""


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
    """What YARN alone asks of a job on it."""
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
    def _across_sections(self) -> Config:
        training = self.training
        check_run(self)
        if self.data.kind == "image" and training.framework != "torch":
            raise ValueError(
                "data.kind image trains a vision transformer, which training.framework torch alone"
                f" has; set training.framework to torch (got {training.framework})"
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
        if self.job.controller == "mpi" and on_nodes and self.yarn.environment != "path":
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
