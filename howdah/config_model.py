"""The run configuration's sections, as frozen pydantic models.

One YAML file drives everything. A key that means what one of Hugging Face's `TrainingArguments`
means has its name. Each field's docstring is its help text: `howdah config explain KEY` and the
Airflow trigger form show it.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from howdah.config_types import Bytes, Fraction, Section
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


# ------------------------------------------------------------------------------------ data
class Columns(Section):
    """Which columns of the source hold what."""

    text: list[str] = ["text"]
    """Column(s) of the text; several are joined with `separator`."""
    label: str = "label"
    """Column of the label."""
    id: str | None = None
    """Column of the row's own key; without one the id is hash(source text, occurrence)."""
    separator: str = " "
    """Put between several text columns."""

    @field_validator("text", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value


class CsvOptions(Section):
    header: bool = True
    """The first line names the columns. Without it give `names`."""
    names: list[str] | None = None
    """Column names of a file without header."""
    delimiter: str = ","
    """Field separator, one character."""
    quote: str = '"'
    """Quote character."""
    escape: str | None = None
    """Escape character inside quotes; none means that a quote is doubled."""
    encoding: str = "UTF-8"
    """Character set of the file."""


class CleanOptions(Section):
    unicode_nfc: bool = True
    """Unicode normalisation form C."""
    html_entities: bool = True
    """`&amp;` and the broken ` #36;` become the characters they mean."""
    html_tags: bool = False
    """Remove markup tags."""
    backslash_breaks: bool = False
    """A backslash becomes a blank: AG News writes line breaks so."""
    control_characters: bool = True
    """Remove control characters; line breaks and tabs become blanks."""
    whitespace: bool = True
    """Runs of white space become one blank; ends are trimmed."""


class QualityOptions(Section):
    min_characters: int = Field(default=3, ge=0)
    """Shorter texts are rejected (too_short)."""
    max_characters: int = Field(default=20_000, gt=0)
    """Longer texts are rejected (too_long)."""
    reject_wrong_encoding: bool = True
    """Reject texts with replacement characters or the marks of a doubly decoded text."""
    unknown_label: Literal["reject", "fail"] = "fail"
    """A label that `labels` does not list: reject the row, or fail the ETL."""
    max_reject_fraction: float = Field(default=0.5, ge=0.0, le=1.0)
    """More rejected rows than this fraction fail the ETL (exit 3), duplicates not counted."""


class DedupOptions(Section):
    exact: bool = True
    """Remove rows whose cleaned text is the same."""
    near: bool = True
    """Remove near duplicates by MinHash-LSH."""
    ngram: int = Field(default=5, ge=1, le=20)
    """Words in a shingle."""
    num_permutations: int = Field(default=128, ge=16, le=512)
    """MinHash permutations; must be divisible by `bands`."""
    bands: int = Field(default=16, ge=1)
    """LSH bands; more bands find less similar pairs."""
    threshold: float = Field(default=0.8, gt=0.0, le=1.0)
    """Estimated Jaccard similarity from which two texts are near duplicates."""
    max_bucket_size: int = Field(default=1_000, ge=2)
    """Rows of one LSH bucket that are compared; the rest of a larger one is capped and reported."""

    @model_validator(mode="after")
    def _divisible(self) -> DedupOptions:
        if self.num_permutations % self.bands:
            raise ValueError(
                f"num_permutations ({self.num_permutations}) must be divisible by bands"
                f" ({self.bands})"
            )
        return self


class SplitOptions(Section):
    validation: Fraction = 0.1
    """Fraction of duplicate clusters that go to validation."""
    test: Fraction = 0.1
    """Fraction of duplicate clusters that go to test."""
    seed: int = Field(default=13, ge=0)
    """Seed of the split's hash."""

    @model_validator(mode="after")
    def _leaves_train(self) -> SplitOptions:
        if self.validation + self.test >= 1.0:
            raise ValueError("validation + test must stay below 1")
        return self


class TfrecordColumns(Section):
    """Feature names of records that another writer made (`format: tfrecord`)."""

    input_ids: str = "input_ids"
    """int64_list (or bytes) feature of the token ids."""
    attention_mask: str | None = None
    """int64_list feature of the mask; without it ids are cut at trailing padding."""
    label: str = "label"
    """int64_list feature of the label's number."""
    id: str | None = None
    """bytes or int64 feature of the row's key."""


class SparkOptions(Section):
    master: str = "local[*]"
    """Spark master: local[*], yarn, spark://..."""
    deploy_mode: Literal["client", "cluster"] = "client"
    """Where the driver of `master: yarn` runs: here, or in a container."""
    home: str | None = None
    """A cluster's own Spark (SPARK_HOME), 3.5 to 4.2: its spark-submit and its jars are used as
    they are. None: the PySpark that is installed here."""
    driver_memory: str = "4g"
    """Memory of the driver (of everything, for local[*])."""
    queue: str | None = None
    """YARN queue; none: the cluster's default."""
    executors: int | None = Field(default=None, ge=1)
    """Executors on YARN; none: as the Spark's own settings say (2, or dynamic allocation)."""
    executor_memory: str = "4g"
    """Memory of an executor's JVM on YARN; Python's is `spark.executor.memoryOverhead` in conf."""
    executor_cores: int = Field(default=2, ge=1)
    """Cores of an executor on YARN: that many tasks at once."""
    staging: str | None = None
    """Directory on the cluster's storage for what is shipped (Python environment, wheel, Spark's
    jars), each by its hash; none: .howdah in the user's home of fs.defaultFS."""
    java_archive: str | None = None
    """A JRE as .tar.gz or .zip (any storage) for nodes without a fitting Java; shipped to them."""
    keytab: str | None = None
    """Keytab file of this machine for a Kerberised cluster; none: the ticket cache."""
    principal: str | None = None
    """Principal of the keytab."""
    conf: dict[str, str] = {}
    """More Spark settings; they win over those above."""

    @model_validator(mode="after")
    def _both_of_a_keytab(self) -> SparkOptions:
        if (self.keytab is None) != (self.principal is None):
            raise ValueError("give keytab and principal together, or neither")
        return self


class DataSection(Section):
    source: str | None = None
    """Where rows come from: a file, a directory or a pattern; or `docstrings:` (a corpus of the
    installed packages); or, with `format: hive`, a table name."""
    partitions: dict[str, list[str]] | None = None
    """Partitions of a Hive table: {partition column: [values]}; columns not named: all values."""
    query_file: str | None = None
    """File with one SELECT (any storage) whose rows are the source, with `format: hive`."""
    rejects_table: str | None = None
    """Hive table that gets the rejected rows too, a partition (`dataset`) for each version."""
    format: Literal["auto", "csv", "jsonl", "parquet", "hive", "tfrecord", "docstrings"] = "auto"
    """Format of the source; auto goes by the file name's end."""
    dataset: str = "dataset"
    """Dataset directory to write to and to train from: versions lie in it as v=<hash>."""
    columns: Columns = Columns()
    """Column mapping."""
    csv: CsvOptions = CsvOptions()
    """How a CSV source is read."""
    tfrecord: TfrecordColumns = TfrecordColumns()
    """Feature names of a TFRecord source."""
    docstring_packages: list[str] | None = None
    """Packages of the `docstrings:` corpus; none means the project's own list."""
    labels: list[str] | dict[str, str] | None = None
    """Labels in their order, or {value in the source: label name}; none means: all values found,
    sorted."""
    max_length: int = Field(default=128, ge=8, le=8192)
    """Tokens a text is cut at, [CLS] and [SEP] included."""
    clean: CleanOptions = CleanOptions()
    """Cleaning steps."""
    quality: QualityOptions = QualityOptions()
    """Quality gate."""
    dedup: DedupOptions = DedupOptions()
    """Removal of duplicates."""
    split: SplitOptions = SplitOptions()
    """Train/validation/test."""
    balance: Literal["none", "downsample", "upsample"] = "none"
    """Class balance of the training split: cut to, or repeat up to, `balance_ratio`."""
    balance_ratio: float = Field(default=1.0, ge=1.0)
    """Largest class / smallest class after balancing."""
    shuffle_seed: int = Field(default=17, ge=0)
    """Seed of the global shuffle of the shards."""
    shard_bytes: Bytes = 96 * 2**20
    """Aim for a shard's size, e.g. 96 MiB."""
    num_shards: int | None = Field(default=None, ge=1)
    """Shards of the training split; none: by `shard_bytes`."""
    compression: Literal["none", "gzip"] = "none"
    """Compression of the shards."""
    record_layout: Literal["bytes", "int64_list"] = "bytes"
    """How token ids lie in a record; int64_list is for foreign readers (larger, slower)."""
    spark: SparkOptions = SparkOptions()
    """Spark of the ETL."""

    @field_validator("partitions", mode="before")
    @classmethod
    def _values_as_text(cls, value: Any) -> Any:
        # YAML reads 2026 and 2026-01-01 as a number and a date; a partition's value is a text
        if not isinstance(value, dict):
            return value
        return {
            key: [str(v) for v in (values if isinstance(values, list) else [values])]
            for key, values in value.items()
        }

    @model_validator(mode="after")
    def _hive_only(self) -> DataSection:
        for name in ("partitions", "query_file"):
            if getattr(self, name) is not None and self.format != "hive":
                raise ValueError(f"{name} needs format: hive")
        if self.query_file is not None and (self.source or self.partitions):
            raise ValueError("query_file takes the place of source and partitions: give one")
        return self


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
    """auto: bf16 where all ranks are sure to be faster by it (GPUs, processors with AMX, AMD's with
    AVX512-BF16), else fp32. fp16 (with loss scaling) on GPUs only."""
    label_smoothing_factor: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Label smoothing."""
    class_weights: Literal["none", "balanced"] | dict[str, float] = "none"
    """Weights of the classes in the loss: balanced, or {label: weight}."""
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
    """How long `howdah train` waits for a checkpoint when it is interrupted."""


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
