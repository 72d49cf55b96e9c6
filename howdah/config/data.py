"""The run configuration's section `data`: sources, cleaning, duplicates, splits, Spark
(howdah/config/model.py has the others).
"""

from __future__ import annotations

from datetime import date
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from howdah.config.options.dedup import DedupOptions
from howdah.config.options.source import LAKES, TABLE_NAME, JdbcOptions, check_as_of
from howdah.config.options.split import SplitOptions
from howdah.config.splits import HeldOut
from howdah.config.tasks import Task
from howdah.config.types import (
    AnyPath,
    Bytes,
    Query,
    Queue,
    RankPath,
    Rare,
    Section,
    Setting,
    SourcePath,
    SparkMaster,
    Table,
    User,
    Usual,
    number_as_text,
)
from howdah.storage.charsets import codec_of, lines_are_bytes

InputKind = Literal["text", "image"]
"""What a row is, before it has become numbers."""


class Columns(Section):
    """Columns of the source."""

    text: Usual[list[str]] = Field(default=["text"], min_length=1)
    """Column of the text. A list of columns is joined with data.columns.separator."""
    text_pair: Rare[list[str] | None] = None
    """Column (or columns) of a second text. The model reads both texts, joined as the tokenizer
    joins pairs."""
    label: Usual[str] = "label"
    """Column, or feature of a TFRecord, with the label (with the labels or the number, if data.task
    is multi_label or regression)."""
    label_separator: Rare[str] = Field(default=",", min_length=1)
    """Separator of the labels in a text column, with `task: multi_label`. An array of texts, or a
    JSON list as text, needs none."""
    id: Usual[str | None] = None
    """Column, or feature of a TFRecord, with the row's key. null: the id is a hash of the source
    text and its occurrence, or the record's place in its file."""
    separator: Rare[str] = " "
    """Separator between joined text columns."""
    image: Rare[str] = "image"
    """Column of the image files' bytes, with `kind: image`. image.bytes is a field of a struct."""

    @field_validator("text", "text_pair", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("text_pair")
    @classmethod
    def _none_is_null(cls, value: list[str] | None) -> list[str] | None:
        return value or None


class CsvOptions(Section):
    header: bool = True
    """Whether the first line has the column names. Without a header, data.csv.names is needed."""
    names: list[str] | None = None
    """Column names of a file without header; needs `header: false`."""
    delimiter: str = ","
    """Field separator, one character. `\\t` is a tab. In a file named .tsv the
    default, a comma, means a tab: rename a comma-separated file to .csv."""
    quote: Rare[str] = '"'
    """Quote character. If it is empty, quotes are part of the text."""
    escape: Rare[str | None] = None
    """Escape character inside quotes. null: a quote is escaped by doubling it."""
    encoding: Rare[str] = "UTF-8"
    """Character set of the file, by its name in Python or Java, such as windows-1252, GBK or
    UTF-16."""
    multiline: Rare[bool] = True
    """Whether quoted fields may contain line breaks. true: one task reads each file, after a check
    for unclosed quotes. false: each line is a record, and several tasks read a large file."""

    @field_validator("delimiter", "quote", "escape")
    @classmethod
    def _one_character(cls, value: str | None, info: ValidationInfo) -> str | None:
        value = "\t" if value == "\\t" else value
        if value is None or (value == "" and info.field_name == "quote"):
            return value
        if len(value) != 1 or value in "\r\n\0":
            raise ValueError(
                f"it is {value!r}; expected one character other than a line break (in YAML and in"
                " --set a special one stands in quotes: '|')"
            )
        return value

    @field_validator("encoding")
    @classmethod
    def _text_encoding(cls, value: str) -> str:
        try:
            codec_of(value)
        except LookupError:
            raise ValueError(
                f"no such character set: {value!r}; UTF-8, ISO-8859-1, windows-1252, ... are some"
            ) from None
        return value

    @model_validator(mode="after")
    def _fields_can_be_told_apart(self) -> CsvOptions:
        if self.delimiter in (self.quote, self.escape):
            raise ValueError(f"delimiter is the quote or escape character: {self.delimiter!r}")
        if self.header and self.names:
            raise ValueError(
                "names are for a file without a header: set csv.header: false, or leave them out"
            )
        if not self.multiline and not lines_are_bytes(self.encoding):
            raise ValueError(
                f"multiline: false cannot find the lines of {self.encoding}: convert the files to"
                " UTF-8, or keep multiline: true"
            )
        return self


class CleanOptions(Section):
    unicode_nfc: Rare[bool] = True
    """Whether texts are normalised to Unicode form C."""
    html_entities: bool = True
    """Whether HTML entities are replaced by their characters, broken ones (` #36;`) too."""
    html_tags: bool = False
    """Whether markup tags are removed."""
    backslash_breaks: bool = False
    """Whether backslashes are replaced by blanks. AG News uses them for line breaks."""
    control_characters: Rare[bool] = True
    """Whether control characters are removed, and line breaks and tabs replaced by blanks."""
    whitespace: Rare[bool] = True
    """Whether runs of white space become one blank, and the ends are trimmed."""


class QualityOptions(Section):
    min_characters: int = Field(default=3, ge=0)
    """Fewest characters of a text. Shorter texts are rejected (too_short)."""
    max_characters: int = Field(default=20_000, gt=0)
    """Most characters of a text. Longer texts are rejected (too_long)."""
    reject_wrong_encoding: bool = True
    """Whether texts with replacement characters or signs of wrong decoding (mojibake) are
    rejected."""
    unknown_label: Literal["reject", "fail"] = "fail"
    """What happens to a row whose label is not in data.labels, or whose value of data.split.column
    names no split. reject: the row is rejected. fail: the ETL fails."""
    max_reject_fraction: float = Field(default=0.5, ge=0.0, le=1.0)
    """Largest fraction of rejected rows; above it the ETL fails (exit code 3). Copies, and rows
    that the dataset already has, do not count."""
    max_leakage: Rare[float | None] = Field(default=None, ge=0.0, le=1.0)
    """Largest fraction of validation and test rows that may have a near copy among the training
    rows; a sample of up to 1,000 rows of each of the two is checked. Above it the ETL fails
    (exit code 3). null: the fraction is only reported."""


class AppendOptions(Section):
    enabled: bool = False
    """Whether the source's rows become a part of a new version that also has all rows of the newest
    version. Old rows keep their split; the first version starts the ledger that new rows are
    compared with."""
    part: Rare[str | None] = Field(default=None, pattern=r"^[^\s/][^/]*$")
    """Name of the part; null: the name of the part that was read from this source, else the
    partitions' values (ds=2026-01-31), else the last component of the source's name, with a
    hash appended if another source has that name. A part whose source has changed is replaced: rows
    that stay keep their split."""
    frozen: Rare[list[HeldOut]] = []
    """Splits that get no new rows after the first version, so that all later models are measured on
    the same ones. New rows like theirs are rejected (held_out_copy)."""


class ExpectOptions(Section):
    min_rows: int | None = Field(default=None, ge=1)
    """Fewest rows of all splits together. A version that misses this or another expectation is not
    committed, and the ETL fails (exit code 3)."""
    min_rows_per_class: int | None = Field(default=None, ge=1)
    """Fewest rows of each label in all splits together."""
    max_duplicates: float | None = Field(default=None, ge=0.0, le=1.0)
    """Largest share of the rows read that may be dropped as duplicates."""
    max_shift: Rare[float | None] = Field(default=None, gt=0.0, le=1.0)
    """Largest total variation distance (0 to 1) from the previous version of data.dataset, checked
    for the shares of labels, the lengths in tokens (in bins of 8) and the shares of rows kept or
    dropped for each reason. The first version has no predecessor and is not checked."""

    @property
    def asks(self) -> bool:
        """Anything is expected."""
        return self != ExpectOptions()


class TfrecordColumns(Section):
    """Feature names of records by another writer (`format: tfrecord`)."""

    input_ids: Rare[str] = "input_ids"
    """Feature (int64_list or bytes) of the token ids."""
    attention_mask: Rare[str | None] = None
    """Feature (int64_list) of the attention mask. null: trailing padding is cut off."""


class SparkOptions(Section):
    master: Usual[SparkMaster] = "local[*]"
    """Spark master, such as local[*], yarn or spark://host:7077."""
    deploy_mode: Literal["client", "cluster"] = "client"
    """Where Spark's driver runs with `master: yarn`. client: in this process. cluster: in a
    container."""
    home: Rare[AnyPath | None] = None
    """SPARK_HOME of the cluster's own Spark, 3.4 to 4.2, whose spark-submit and jars are used.
    null: the PySpark that is installed with Howdah."""
    driver_memory: str = "4g"
    """Memory of Spark's driver. With local[*] it is the memory of all of Spark."""
    queue: Usual[Queue | None] = None
    """YARN queue of the ETL and of other Spark applications. null: the cluster's default."""
    executors: Usual[int | None] = Field(default=None, ge=1)
    """Number of executors on YARN. null: as in Spark's own settings (2, or dynamic allocation)."""
    executor_memory: Usual[str] = "4g"
    """Memory of an executor's JVM on YARN; set Python's as `spark.executor.memoryOverhead` in
    conf."""
    executor_cores: int = Field(default=2, ge=1)
    """Cores of an executor on YARN, and the number of its simultaneous tasks."""
    java_archive: Rare[AnyPath | None] = None
    """Archive of a JRE (.tar.gz or .zip, any storage) that is shipped to nodes without a suitable
    Java."""
    keytab: Rare[AnyPath | None] = None
    """Local keytab file for a Kerberised cluster. null: the ticket cache is used."""
    principal: Rare[User | None] = None
    """Kerberos principal of data.spark.keytab."""
    conf: Rare[dict[Setting, str]] = {}
    """Additional Spark settings. They override those that follow from other keys."""

    @property
    def login(self) -> tuple[str | None, str | None, str]:
        """What howdah/hadoop/kerberos.py `logged_in` takes."""
        return self.keytab, self.principal, "data.spark.keytab"

    @model_validator(mode="after")
    def _both_of_a_keytab(self) -> SparkOptions:
        if (self.keytab is None) != (self.principal is None):
            raise ValueError("give keytab and principal together, or neither")
        return self


class DataSection(Section):
    kind: Rare[InputKind] = "text"
    """Kind of the rows. text: texts. image: a directory <label>/<image file>, or Parquet with a
    column of image files' bytes, on which a vision transformer is trained (training.framework
    torch)."""
    task: Rare[Task] = "single_label"
    """What the model predicts for a row. single_label: one label. multi_label: any number of
    labels. regression: a number."""
    source: Usual[SourcePath | None] = None
    """Source of the rows: a file, a directory or a pattern; with `format: hive` or `jdbc` a table
    name; with `iceberg` or `delta` a table name or a directory."""
    partitions: Usual[dict[str, list[str]] | None] = None
    """Partitions of a Hive table: {partition column: [values]}; other columns: all values."""
    query_file: Rare[Query | None] = None
    """File (any storage) with one SELECT whose rows are the source, with `format: hive` or
    `jdbc`."""
    as_of: Rare[int | str | None] = None
    """Snapshot of an Iceberg table or version of a Delta table: its number, or a time (ISO 8601,
    UTC unless it names a zone). null: the newest when the ETL begins."""
    rejects_table: Rare[Table | None] = None
    """Hive table for a copy of the rejected rows, with a partition (`dataset`) per version."""
    format: Usual[Literal[
        "auto", "csv", "jsonl", "parquet", "orc", "avro", "hive", "jdbc", "iceberg", "delta",
        "tfrecord", "image",
    ]] = "auto"  # fmt: skip
    """Format of the source. auto: it follows from the file name's extension. image: image files,
    with `kind: image`."""
    dataset: Usual[RankPath] = "dataset"
    """Dataset directory, with versions v=<hash>. The ETL writes to it and training reads from
    it."""
    columns: Columns = Columns()
    """Column mapping."""
    csv: CsvOptions = CsvOptions()
    """How a CSV source is read."""
    jdbc: JdbcOptions = JdbcOptions()
    """How a database is read."""
    tfrecord: TfrecordColumns = TfrecordColumns()
    """Feature names of a TFRecord source."""
    labels: Usual[list[str] | dict[str, str] | None] = None
    """Labels in their order, or {value in the source: label name}. null: all values, sorted."""
    max_length: Usual[int] = Field(default=128, ge=8, le=8192)
    """Most tokens of a text, [CLS] and [SEP] included. Longer texts are truncated."""
    clean: CleanOptions = CleanOptions()
    """Cleaning steps."""
    quality: QualityOptions = QualityOptions()
    """Quality gate."""
    dedup: DedupOptions = DedupOptions()
    """Removal of duplicates."""
    split: SplitOptions = SplitOptions()
    """Train/validation/test split."""
    append: AppendOptions = AppendOptions()
    """How new rows, such as a day's partition, are appended to the previous version."""
    expect: ExpectOptions = ExpectOptions()
    """What a new version must have to be committed."""
    balance: Literal["none", "downsample", "upsample"] = "none"
    """How the classes of the training split get equally many rows. downsample: rows are dropped.
    upsample: rows are repeated. none: the classes stay as they are."""
    shard_bytes: Rare[Bytes] = 96 * 2**20
    """Target size of a shard, e.g. 96 MiB."""
    num_shards: Rare[int | None] = Field(default=None, ge=1)
    """Number of shards of the training split. null: it follows from data.shard_bytes."""
    compression: Rare[Literal["none", "gzip"]] = "none"
    """Compression of the shards."""
    spark: SparkOptions = SparkOptions()
    """Spark for the ETL."""

    @field_validator("labels", mode="before")
    @classmethod
    def _labels_as_text(cls, value: Any) -> Any:
        # YAML reads [0, 1] and {1: World} as numbers, and yes and no as booleans
        if not isinstance(value, list | dict):
            return value
        each = [*value, *value.values()] if isinstance(value, dict) else value
        if any(isinstance(one, bool) for one in each):
            raise ValueError("true and false are not labels in YAML: write them in quotes")
        if isinstance(value, dict):
            return {number_as_text(key): number_as_text(name) for key, name in value.items()}
        return [number_as_text(name) for name in value]

    @field_validator("labels")
    @classmethod
    def _labels_once(
        cls, value: list[str] | dict[str, str] | None
    ) -> list[str] | dict[str, str] | None:
        if value is not None and not value:
            raise ValueError("labels is empty: list them, or leave it out for all values, sorted")
        keys = [key.strip() for key in value or ()]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise ValueError(
                f"labels lists {', '.join(map(repr, twice))} twice; blanks at the ends do not count"
            )
        return value

    @field_validator("partitions", mode="before")
    @classmethod
    def _values_as_text(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        return {
            key: [_as_text(one) for one in (values if isinstance(values, list) else [values])]
            for key, values in value.items()
        }

    @field_validator("as_of", mode="before")
    @classmethod
    def _snapshot_or_time(cls, value: Any) -> Any:
        return check_as_of(value)

    @model_validator(mode="after")
    def _fit_the_format(self) -> DataSection:
        for name, formats in _ONLY_WITH.items():
            is_set = getattr(self, name) not in (None, JdbcOptions())
            if is_set and self.format not in formats:
                raise ValueError(f"{name} needs format: {' or '.join(formats)}")
        if self.query_file is not None and (self.source or self.partitions):
            raise ValueError("query_file replaces source and partitions: give one")
        return self

    @property
    def names_table(self) -> bool:
        """Whether `source` is a table's name, not files."""
        if self.format in LAKES:
            return TABLE_NAME.fullmatch(self.source or "") is not None
        return self.format in ("hive", "jdbc")

    @model_validator(mode="after")
    def _keys_of_the_task(self) -> DataSection:
        columns, task = self.columns, self.task
        paired = columns.text_pair is not None
        of_texts = self.kind == "text" and self.format != "tfrecord"
        if of_texts and columns.label in (*columns.text, *(columns.text_pair or ())):
            raise ValueError(
                f"columns.text and columns.label are the same column, {columns.label!r}: a model"
                " would read what it has to predict; name two columns"
            )
        if paired and self.kind == "image":
            raise ValueError("columns.text_pair is for texts: leave it out for kind image")
        if paired and self.format == "tfrecord":
            raise ValueError(
                "columns.text_pair is for texts: records of another writer hold the ids of both"
                " sides already; leave it out"
            )
        if task == "single_label":
            return self
        if self.kind == "image":
            raise ValueError(f"task {task} is for texts: images have one label each")
        if self.format == "tfrecord":
            raise ValueError(
                f"task {task} is not read from records of another writer: give the texts as the"
                " source"
            )
        if self.balance != "none":
            raise ValueError(f"balance {self.balance} needs one class a row: task {task} has none")
        if task == "multi_label":
            return self
        if self.labels is not None:
            raise ValueError("labels name classes, and task regression has none: leave them out")
        if self.dedup.conflict.policy == "majority":
            raise ValueError(
                "dedup.conflict majority counts labels: for task regression choose reject (with a"
                " tolerance) or keep"
            )
        if self.expect.min_rows_per_class is not None:
            raise ValueError(
                "expect.min_rows_per_class counts labels, and task regression has none: leave it"
                " out"
            )
        return self

    @model_validator(mode="after")
    def _can_append(self) -> DataSection:
        if not self.append.enabled:
            return self
        split = self.split
        bad = [f"split.{key}" for key in split.of_texts + (["fold"] if split.fold else [])]
        bad += [f"balance: {self.balance}"] if self.balance != "none" else []
        bad += [] if self.dedup.exact else ["dedup.exact: false"]
        bad += ["kind: image"] if self.kind == "image" else []
        bad += [f"task: {self.task}"] if self.task != "single_label" else []
        bad += [f"format: {self.format}"] if self.format in ("tfrecord", "image") else []
        if bad:
            raise ValueError(
                f"append cannot be used with {', '.join(bad)}: they need all rows at once"
            )
        return self

    @model_validator(mode="after")
    def _keys_of_the_kind(self) -> DataSection:
        if self.kind == "text":
            if self.format == "image":
                raise ValueError("data.format image needs data.kind: image")
            return self
        changed = self.model_dump(include=set(_OF_TEXTS), exclude_defaults=True)
        of_texts = [name for name in _OF_TEXTS if changed.get(name) not in (None, {})]
        if of_texts:
            keys = ", ".join(f"data.{name}" for name in of_texts)
            raise ValueError(f"data.kind image has no use for {keys}: leave it out")
        if self.format not in ("auto", "parquet", "image"):
            raise ValueError(
                f"data.format {self.format} is not for images: give a directory"
                " <label>/<image file> or Parquet files, with data.format auto, image or parquet"
            )
        return self


def _as_text(value: Any) -> Any:
    """A number or date that YAML made of a partition's value, as that text. Null and true stay:
    pydantic refuses them, since Hive spells neither like Python."""
    is_text = isinstance(value, int | float | date) and not isinstance(value, bool)
    return str(value) if is_text else value


_ONLY_WITH = {
    "partitions": ("hive",), "query_file": ("hive", "jdbc"), "as_of": LAKES, "jdbc": ("jdbc",),
}  # fmt: skip
_OF_TEXTS = ("csv", "tfrecord", "max_length", "clean")
"""Keys of `data` that say how texts are read, cleaned and stored."""
