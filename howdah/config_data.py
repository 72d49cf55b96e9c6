"""The run configuration's section `data`: sources, cleaning, duplicates, splits, Spark
(config_model.py has the others).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from howdah.config_types import Bytes, Fraction, Section

__all__ = [
    "CleanOptions",
    "Columns",
    "CsvOptions",
    "DataSection",
    "DedupOptions",
    "QualityOptions",
    "SparkOptions",
    "SplitOptions",
    "TfrecordColumns",
]


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
    multiline: bool = True
    """Quoted fields may hold line breaks. Then each file is read whole by one task, and first
    checked for unclosed quotes. false: a line is a record, and many tasks read a large file."""
    max_line_breaks: int = Field(default=1_000, ge=0)
    """More line breaks in one quoted field are taken for an unclosed quote: the ETL fails (3)."""

    @model_validator(mode="after")
    def _lines_can_be_found(self) -> CsvOptions:
        try:
            ascii_lines = "a\n".encode(self.encoding).endswith(b"a\n")
        except LookupError:
            return self  # the ETL's own check names the key
        if not self.multiline and not ascii_lines:
            raise ValueError(
                f"multiline: false cannot find the lines of {self.encoding}: convert the files to"
                " UTF-8, or keep multiline: true"
            )
        return self


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
    """Different signatures of one LSH bucket that are all compared. Of a larger bucket so many are
    compared with all others; the others, not all compared, are kept in one split, and reported."""

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
    driver_edges: int = Field(default=2_000_000, ge=0)
    """Pairs of near duplicates that the driver joins to clusters by itself, some 100 bytes each;
    more are first contracted in rounds on the executors. The dataset is the same."""
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
