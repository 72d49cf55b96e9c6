"""The run configuration's sections, as frozen pydantic models.

One YAML file drives everything. A key that means what one of Hugging Face's `TrainingArguments`
means has its name. Each field's docstring is its help text: `howdah config explain KEY` and the
Airflow trigger form show it.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, field_validator, model_validator

from howdah.config_data import DataSection
from howdah.config_types import Bytes, Section
from howdah.config_yarn import YarnSection
from howdah.metric_names import SCALARS, unknown_metric


# ------------------------------------------------------------------------------------- run
class RunSection(Section):
    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run: letters, digits, '.', '_' and '-'."""
    directory: str = "runs/run"
    """Run directory (any storage): config, logs, metrics, checkpoints, export, predictions."""
    user: str | None = None
    """Whose files and applications they are (doAs): the cluster must let you impersonate them."""
    storage_retry_seconds: float = Field(default=120.0, ge=0.0, allow_inf_nan=False)
    """Seconds to wait for storage that is away (a NameNode restarting or in safe mode)."""


# ----------------------------------------------------------------------------------- model
class ModelSection(Section):
    base: str = "distilbert-base-uncased"
    """Base model: a directory, an hdfs:// path or a hub name."""
    revision: str | None = None
    """Revision of a hub name."""
    dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Dropout of the transformer; none: the base's."""
    attention_dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Dropout of the attention weights; none: the base's."""
    classifier_dropout: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Dropout before the classifier (seq_classif_dropout); none: the base's."""
    freeze_embeddings: bool = False
    """Leave the embeddings as they are."""
    freeze_layers: int = Field(default=0, ge=0)
    """Leave the first N transformer layers as they are."""


# -------------------------------------------------------------------------------- training
class EarlyStopping(Section):
    patience: int | None = Field(default=None, ge=1)
    """Evaluations without a better metric after which training stops; none: off."""
    min_delta: float = Field(default=0.0, ge=0.0)
    """What counts as better."""


class TrainingSection(Section):
    framework: Literal["tensorflow", "torch"] = "tensorflow"
    """Which framework trains."""
    global_batch_size: int = Field(default=32, ge=1)
    """Rows of one optimizer step over all ranks: the world size never changes what is learnt."""
    per_device_max_tokens: int = Field(default=8192, ge=128)
    """Tokens (padding included) of one micro-batch; a rank's slice beyond it is accumulated."""
    num_train_epochs: float = Field(default=3.0, gt=0)
    """Epochs; a part of one is allowed."""
    max_steps: int | None = Field(default=None, ge=1)
    """Stop after this many optimizer steps, whatever num_train_epochs says."""
    learning_rate: float = Field(default=5e-5, gt=0, lt=1)
    """Peak learning rate."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "none"
    """Scale it by global_batch_size / lr_reference_batch_size (never by world size)."""
    lr_reference_batch_size: int = Field(default=32, ge=1)
    """Batch size that learning_rate was chosen for."""
    lr_scheduler_type: Literal["linear", "cosine", "constant"] = "linear"
    """Decay after the warm-up, to zero at the last step (constant: none)."""
    warmup_ratio: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Fraction of all steps with linear warm-up."""
    warmup_steps: int = Field(default=0, ge=0)
    """The same in steps; wins over warmup_ratio when above 0."""
    weight_decay: float = Field(default=0.01, ge=0)
    """Decoupled weight decay, not on biases and norms."""
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    """AdamW beta 1."""
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    """AdamW beta 2."""
    adam_epsilon: float = Field(default=1e-8, gt=0)
    """AdamW epsilon."""
    max_grad_norm: float = Field(default=1.0, ge=0)
    """Clip the reduced gradient at this global norm; 0: off."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """auto: bf16 where all ranks are sure to be faster by it (GPUs of compute capability 8.0 and
    above, processors with AMX, AMD's with AVX512-BF16), else fp32. fp16 (with loss scaling) by name
    and on GPUs only. Metrics of evaluations during training are of this precision's forward pass;
    those of the last one, which the gate judges, are as the model is served: in fp32."""
    label_smoothing_factor: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Label smoothing."""
    class_weights: Literal["none", "balanced"] | dict[str, float] = "none"
    """Weights of the classes in the loss: balanced, or {label: weight}. A row's whole loss is
    multiplied by its label's weight: with label_smoothing_factor too, where torch's cross_entropy
    weighs each class's term by that class instead. Without smoothing both are the same."""
    gradient_checkpointing: bool = False
    """Trade time for memory (torch only)."""
    sparse_embeddings: Literal["auto", "dense", "sparse"] = "auto"
    """Form in which the embedding gradient crosses the network."""
    fusion_groups: int | None = Field(default=None, ge=1)
    """Fixed groups in which gradients are reduced: the same bits at every run from np=3 on."""
    early_stopping: EarlyStopping = EarlyStopping()
    """Early stopping on evaluation.metric."""
    logging_steps: int = Field(default=10, ge=1)
    """Steps between progress lines."""
    gpu_collective_seconds: float | None = Field(default=1800.0, ge=1, allow_inf_nan=False)
    """On GPUs: a collective that lasts longer ends the rank with an error, since NCCL waits for
    ever for a peer that has vanished. It must be longer than one rank may rightly be waited for
    (an export, a dataset's check). None: no limit."""
    threads_per_rank: int | None = Field(default=None, ge=1)
    """Compute threads of a rank; none: cores / ranks on the node."""
    shard_cache_bytes: Bytes = 20 * 2**30
    """Most that local copies of remote (or compressed) shards take on a machine, all runs and
    datasets together, e.g. 20 GiB. It must hold two groups of shards (16 shards)."""
    shard_cache_directory: str | None = None
    """Local directory of those copies, one for all ranks of a machine; none: $HOWDAH_CACHE/shards,
    or the user's cache."""
    seed: int = Field(default=42, ge=0)
    """Seed of the batch order, the classifier's initial weights and dropout."""


class CheckpointSection(Section):
    directory: str | None = None
    """Where checkpoints go; none: <run.directory>/checkpoints."""
    every_minutes: float | None = Field(default=10.0, gt=0)
    """Save after this many minutes; none: not by time."""
    every_steps: int | None = Field(default=None, ge=1)
    """Save after this many steps as well."""
    every_epoch: bool = True
    """Save at the end of each epoch."""
    keep: int = Field(default=3, ge=2)
    """Newest checkpoints to keep; 1 is refused, since the last one may be in the middle of being
    saved. The best one is kept besides."""
    resume: str = "auto"
    """auto: from the newest whole checkpoint if there is one; never; or a checkpoint's path."""
    max_failures: int = Field(default=3, ge=1)
    """Saves in a row that may fail for want of storage (it is full, or does not answer): training
    goes on with a warning and tries again within a minute; at this many it stops. 1: at the
    first."""
    grace_seconds: float = Field(default=30.0, gt=0)
    """How long rank 0 has to save when the job is stopped, or has lost another rank: under every
    launcher of Howdah's, and on YARN. Bare mpirun and horovodrun have limits of their own."""


class EvaluationSection(Section):
    every_steps: int | None = Field(default=None, ge=1)
    """Evaluate on validation after this many steps; none: at the end of each epoch."""
    metric: Literal["loss", "accuracy", "macro_f1", "weighted_f1", "roc_auc"] = "macro_f1"
    """Metric that chooses the best checkpoint and drives early stopping."""
    splits: list[Literal["validation", "test"]] = ["validation", "test"]
    """Splits evaluated at the end."""
    max_rows: int | None = Field(default=None, ge=1)
    """Rows of an evaluation during training (not of the last one); none: all."""
    predictions: bool = True
    """Write predictions/ of the last evaluation (parquet, a part for each rank)."""


class GateSection(Section):
    split: Literal["validation", "test"] = "test"
    """Split whose metrics are judged."""
    minimum: dict[str, float] = {}
    """{metric: least value}, e.g. {accuracy: 0.9}; for loss and ece the value is the most."""
    better_than_published: bool = False
    """Hold evaluation.metric against that of the model that is published now, on the same rows: on
    other data than it was judged on, the published model is evaluated again."""
    margin: float = Field(default=0.0, allow_inf_nan=False)
    """How much better than the published model it must be; 0: as good will do; below 0: it may be
    so much worse."""

    @field_validator("minimum")
    @classmethod
    def _known_metrics(cls, value: dict[str, float]) -> dict[str, float]:
        for name, bound in value.items():
            if name not in SCALARS:
                raise ValueError(unknown_metric(name))
            if not math.isfinite(bound):
                raise ValueError(f"the bound of {name} must be a finite number; got {bound}")
        return value

    @property
    def asks(self) -> bool:
        """True if there is anything to judge."""
        return bool(self.minimum) or self.better_than_published


class PublishSection(Section):
    directory: str = "models"
    """Where published models lie: <directory>/<name>/v=N."""
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Model name: letters, digits, '.', '_' and '-'; none: run.name."""


class MlflowOptions(Section):
    uri: str
    """Tracking URI."""
    experiment: str = "howdah"
    """Experiment's name."""


class TrackingSection(Section):
    tensorboard: bool = True
    """Write TensorBoard events to <run.directory>/tensorboard."""
    mlflow: MlflowOptions | None = None
    """Track in MLflow too: one run whatever the world size."""


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
    gate: GateSection = GateSection()
    """What a model must reach."""
    publish: PublishSection = PublishSection()
    """Where models are published."""
    tracking: TrackingSection = TrackingSection()
    """TensorBoard and MLflow."""
    yarn: YarnSection = YarnSection()
    """YARN."""

    @model_validator(mode="after")
    def _across_sections(self) -> Config:
        training = self.training
        if training.gradient_checkpointing and training.framework == "tensorflow":
            raise ValueError(
                "training.gradient_checkpointing works with training.framework torch only"
            )
        if training.per_device_max_tokens < self.data.max_length:
            raise ValueError(
                f"training.per_device_max_tokens ({training.per_device_max_tokens}) must hold one"
                f" row of data.max_length ({self.data.max_length})"
            )
        if (
            self.evaluation.metric != "loss"
            and self.data.split.validation == 0
            and (training.early_stopping.patience is not None)
        ):
            raise ValueError("training.early_stopping needs data.split.validation above 0")
        # A section `yarn` that is as it comes is no job's on YARN: `howdah train` may have batch 1.
        if self.yarn != YarnSection() and self.yarn.most > training.global_batch_size:
            key = "yarn.workers" if self.yarn.max_workers is None else "yarn.max_workers"
            raise ValueError(
                f"{key} ({self.yarn.most}) must not exceed training.global_batch_size"
                f" ({training.global_batch_size}): each rank needs a row of every step"
            )
        if self.gate.asks and self.gate.split not in self.evaluation.splits:
            raise ValueError(
                f"gate.split ({self.gate.split}) must be one of evaluation.splits"
                f" ({', '.join(self.evaluation.splits) or 'none'}): else nothing is measured on it"
            )
        return self

    @property
    def checkpoint_directory(self) -> str:
        """`checkpoint.directory`, or checkpoints/ in the run directory."""
        return self.checkpoint.directory or self.run.directory.rstrip("/") + "/checkpoints"

    @property
    def model_directory(self) -> str:
        """Where the model is published: <publish.directory>/<publish.name, else run.name>."""
        name = self.publish.name or self.run.name
        return self.publish.directory.rstrip("/") + "/" + name
