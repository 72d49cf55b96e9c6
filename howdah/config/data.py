"""The run configuration's section `data`: sources, cleaning, duplicates, splits, Spark
(howdah/config/model.py has the others).
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from howdah.config.options.append import AppendOptions
from howdah.config.options.dedup import ConflictOptions, DedupOptions
from howdah.config.options.source import LAKES, TABLE_NAME, JdbcOptions, check_as_of
from howdah.config.options.split import MOST_FOLDS, SplitOptions
from howdah.config.tasks import Task, check_data
from howdah.config.types import (
    AnyPath,
    Bytes,
    Query,
    Queue,
    RankPath,
    Section,
    Setting,
    Source,
    SparkMaster,
    Table,
    User,
    number_as_text,
)
from howdah.storage.charsets import codec_of, lines_are_bytes

__all__ = [
    "MOST_FOLDS",
    "AppendOptions",
    "CleanOptions",
    "Columns",
    "ConflictOptions",
    "CsvOptions",
    "DataSection",
    "DedupOptions",
    "ExpectOptions",
    "ExpectShift",
    "InputKind",
    "JdbcOptions",
    "QualityOptions",
    "SparkOptions",
    "SplitOptions",
    "TfrecordColumns",
]


InputKind = Literal["text", "image"]
"""What a row is, before it has become numbers."""


class Columns(Section):
    """Columns of the source."""

    text: list[str] = ["text"]
    """Column of the text, or a list of columns, which are joined with `separator`."""
    text_pair: list[str] | None = None
    """Column (or columns) of a second text: the model reads both, as the tokenizer joins pairs."""
    label: str = "label"
    """Column of the label; of the labels, or of the number, with another `task`."""
    label_separator: str = Field(default=",", min_length=1)
    """With `task: multi_label`: between the labels of a text column. An array of texts, or a JSON
    list as text, needs none."""
    id: str | None = None
    """Column of the row's key; null: the id is a hash of the source text and its occurrence."""
    separator: str = " "
    """Separator of joined text columns."""
    image: str = "image"
    """Column of the image files' bytes, with `kind: image`; image.bytes: a field of a struct."""

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
    """The first line has the column names. If false, `names` is needed."""
    names: list[str] | None = None
    """Column names of a file without header."""
    delimiter: str = ","
    """Field separator, one character; `\\t` is a tab."""
    quote: str = '"'
    """Quote character; empty: quotes are part of the text."""
    escape: str | None = None
    """Escape character inside quotes; null: a quote is doubled."""
    encoding: str = "UTF-8"
    """Character set of the file, by its name in Python or Java: windows-1252, GBK, UTF-16, ..."""
    multiline: bool = True
    """Quoted fields may contain line breaks: then one task reads each file, after a check for
    unclosed quotes. false: each line is a record, and several tasks read a large file."""

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
        if not self.multiline and not lines_are_bytes(self.encoding):
            raise ValueError(
                f"multiline: false cannot find the lines of {self.encoding}: convert the files to"
                " UTF-8, or keep multiline: true"
            )
        return self


class CleanOptions(Section):
    unicode_nfc: bool = True
    """Normalise to Unicode form C."""
    html_entities: bool = True
    """Replace HTML entities, also broken ones (` #36;`), by their characters."""
    html_tags: bool = False
    """Remove markup tags."""
    backslash_breaks: bool = False
    """Replace backslashes by blanks: AG News has them for line breaks."""
    control_characters: bool = True
    """Remove control characters; replace line breaks and tabs by blanks."""
    whitespace: bool = True
    """Replace runs of white space by one blank, and trim the ends."""


class QualityOptions(Section):
    min_characters: int = Field(default=3, ge=0)
    """Reject shorter texts (too_short)."""
    max_characters: int = Field(default=20_000, gt=0)
    """Reject longer texts (too_long)."""
    reject_wrong_encoding: bool = True
    """Reject texts with replacement characters or signs of wrong decoding (mojibake)."""
    unknown_label: Literal["reject", "fail"] = "fail"
    """For a label that is not in `labels`: reject the row, or fail the ETL."""
    max_reject_fraction: float = Field(default=0.5, ge=0.0, le=1.0)
    """The ETL fails (exit code 3) if it rejects a larger fraction of the rows. Copies do not count,
    nor rows that the dataset has already."""
    leakage_sample: int = Field(default=1_000, ge=0, le=10_000)
    """Rows of validation and of test each that are looked up among the training rows, to report how
    many have a near copy there. 0: none."""
    max_leakage: float | None = Field(default=None, ge=0.0, le=1.0)
    """The ETL fails (exit code 3) if a larger fraction of the looked-up rows has a near copy among
    the training rows. null: it is reported only."""

    @model_validator(mode="after")
    def _bound_has_a_sample(self) -> QualityOptions:
        if self.max_leakage is not None and not self.leakage_sample:
            raise ValueError("max_leakage needs a leakage_sample above 0")
        return self


class ExpectShift(Section):
    labels: float | None = Field(default=None, gt=0.0, le=1.0)
    """Largest total variation distance (0 to 1) of the labels' shares from those of the version
    before."""
    length: float | None = Field(default=None, gt=0.0, le=1.0)
    """The same of the texts' lengths in tokens, in bins of 8."""
    rejects: float | None = Field(default=None, gt=0.0, le=1.0)
    """The same of the shares of rows kept and dropped by reason."""

    @property
    def asks(self) -> bool:
        """Anything is expected."""
        return self != ExpectShift()


class ExpectOptions(Section):
    min_rows: int | None = Field(default=None, ge=1)
    """Fewest rows of all splits; below it the ETL fails and commits nothing, as for all that is
    expected (exit code 3)."""
    min_rows_per_class: int | None = Field(default=None, ge=1)
    """Fewest rows of each label in all splits."""
    max_duplicates: float | None = Field(default=None, ge=0.0, le=1.0)
    """Largest share of the rows read that are dropped as duplicates."""
    max_shift: ExpectShift = ExpectShift()
    """Against the newest version of `dataset` before; the first one has none."""

    @property
    def asks(self) -> bool:
        """Anything is expected."""
        return self != ExpectOptions()


class TfrecordColumns(Section):
    """Feature names of records by another writer (`format: tfrecord`)."""

    input_ids: str = "input_ids"
    """int64_list (or bytes) feature of the token ids."""
    attention_mask: str | None = None
    """int64_list feature of the mask; null: trailing padding is cut off."""


class SparkOptions(Section):
    master: SparkMaster = "local[*]"
    """Spark master: local[*], yarn, spark://..."""
    deploy_mode: Literal["client", "cluster"] = "client"
    """Where Spark's driver runs with `master: yarn`: here (client) or in a container (cluster)."""
    home: AnyPath | None = None
    """SPARK_HOME of the cluster's own Spark, 3.5 to 4.2, whose spark-submit and jars are used.
    null: the PySpark that is installed here."""
    driver_memory: str = "4g"
    """Memory of the driver; with local[*], of all of Spark."""
    queue: Queue | None = None
    """YARN queue; null: the cluster's default."""
    executors: int | None = Field(default=None, ge=1)
    """Executors on YARN; null: as in Spark's own settings (2, or dynamic allocation)."""
    executor_memory: str = "4g"
    """Memory of an executor's JVM on YARN; set Python's as `spark.executor.memoryOverhead` in
    conf."""
    executor_cores: int = Field(default=2, ge=1)
    """Cores of an executor on YARN, which is also the number of its tasks at once."""
    staging: AnyPath | None = None
    """Directory on the cluster's storage for shipped files (Python environment, wheel, Spark's
    jars), named by their hashes; null: .howdah in the user's home of fs.defaultFS."""
    java_archive: AnyPath | None = None
    """A JRE as .tar.gz or .zip (any storage), shipped to nodes without a suitable Java."""
    keytab: AnyPath | None = None
    """Local keytab file for a Kerberised cluster; null: the ticket cache."""
    principal: User | None = None
    """Principal of the keytab."""
    conf: dict[Setting, str] = {}
    """Additional Spark settings; they override those above."""

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
    kind: InputKind = "text"
    """What the rows are. image: a directory <label>/<image file>, or Parquet with a column of image
    files' bytes; a vision transformer is trained on them, with training.framework torch."""
    task: Task = "single_label"
    """What is predicted of a row: one label; multi_label: any number of labels; regression: a
    number."""
    source: Source | None = None
    """Source of the rows: a file, a directory or a pattern; with `format: hive` or `jdbc` a table
    name; with `iceberg` or `delta` a table name or a directory."""
    partitions: dict[str, list[str]] | None = None
    """Partitions of a Hive table: {partition column: [values]}; other columns: all values."""
    query_file: Query | None = None
    """File (any storage) with one SELECT whose rows are the source, with `format: hive` or
    `jdbc`."""
    as_of: int | str | None = None
    """Snapshot of an Iceberg table or version of a Delta table: its number, or a time (ISO 8601,
    UTC unless it names a zone). null: the newest when the ETL begins."""
    rejects_table: Table | None = None
    """Hive table for a copy of the rejected rows, a partition (`dataset`) for each version."""
    format: Literal[
        "auto", "csv", "jsonl", "parquet", "orc", "avro", "hive", "jdbc", "iceberg", "delta",
        "tfrecord", "image",
    ] = "auto"  # fmt: skip
    """Format of the source; auto: by the file name's extension. image: image files, with
    `kind: image`."""
    dataset: RankPath = "dataset"
    """Dataset directory, to write to and to train from, with versions v=<hash>."""
    columns: Columns = Columns()
    """Column mapping."""
    csv: CsvOptions = CsvOptions()
    """How a CSV source is read."""
    jdbc: JdbcOptions = JdbcOptions()
    """How a database is read."""
    tfrecord: TfrecordColumns = TfrecordColumns()
    """Feature names of a TFRecord source."""
    labels: list[str] | dict[str, str] | None = None
    """Labels in their order, or {value in the source: label name}; null: all values, sorted."""
    max_length: int = Field(default=128, ge=8, le=8192)
    """Texts are truncated to this many tokens, special ones ([CLS], [SEP]) included."""
    clean: CleanOptions = CleanOptions()
    """Cleaning steps."""
    quality: QualityOptions = QualityOptions()
    """Quality gate."""
    dedup: DedupOptions = DedupOptions()
    """Removal of duplicates."""
    split: SplitOptions = SplitOptions()
    """Train/validation/test split."""
    append: AppendOptions = AppendOptions()
    """A new version from the one before and new rows, such as a day's partition."""
    expect: ExpectOptions = ExpectOptions()
    """What a new version must have to be committed."""
    balance: Literal["none", "downsample", "upsample"] = "none"
    """Drop or repeat rows of the training split until its classes have the same number of rows."""
    shard_bytes: Bytes = 96 * 2**20
    """Target size of a shard, e.g. 96 MiB."""
    num_shards: int | None = Field(default=None, ge=1)
    """Number of shards of the training split; null: by `shard_bytes`."""
    compression: Literal["none", "gzip"] = "none"
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
            raise ValueError("true and false are no labels in YAML: write them in quotes")
        if isinstance(value, dict):
            return {number_as_text(key): number_as_text(name) for key, name in value.items()}
        return [number_as_text(name) for name in value]

    @field_validator("labels")
    @classmethod
    def _labels_once(
        cls, value: list[str] | dict[str, str] | None
    ) -> list[str] | dict[str, str] | None:
        keys = [key.strip() for key in value or ()]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise ValueError(
                f"labels lists {', '.join(map(repr, twice))} twice; blanks at the ends do not count"
            )
        return value

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

    @field_validator("as_of", mode="before")
    @classmethod
    def _snapshot_or_time(cls, value: Any) -> Any:
        return check_as_of(value)

    @model_validator(mode="after")
    def _fit_the_format(self) -> DataSection:
        for name, formats in _ONLY_WITH.items():
            given = getattr(self, name) not in (None, JdbcOptions())
            if given and self.format not in formats:
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
        check_data(self)
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
        given = [name for name in _OF_TEXTS if changed.get(name) not in (None, {})]
        if given:
            keys = ", ".join(f"data.{name}" for name in given)
            raise ValueError(f"data.kind image has no use for {keys}: leave it out")
        if self.format not in ("auto", "parquet", "image"):
            raise ValueError(
                f"data.format {self.format} is not for images: give a directory"
                " <label>/<image file> or Parquet files, with data.format auto, image or parquet"
            )
        return self


_ONLY_WITH = {
    "partitions": ("hive",), "query_file": ("hive", "jdbc"), "as_of": LAKES, "jdbc": ("jdbc",),
}  # fmt: skip
_OF_TEXTS = ("csv", "tfrecord", "max_length", "clean")
"""Keys of `data` that say how texts are read, cleaned and stored."""
