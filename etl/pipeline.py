"""The ETL from end to end: `run` makes a dataset version, or finds that it is there already."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from etl import build, credentials, hive, hive_write, report, shards, sources, split
from etl.build import Built, Kept
from etl.scratch import Scratch
from etl.sources import Source
from etl.staging import Lease, discard, sweep, sweep_until_quiet
from howdah import __version__, storage
from howdah.config_model import Config
from howdah.encode import Encoder
from howdah.errors import (
    DataError,
    HowdahError,
    StorageError,
)
from howdah.manifest import (
    MANIFEST,
    DatasetManifest,
    RecordEntry,
    TokenizerEntry,
    commit,
    content_hash,
    load_dataset,
)
from howdah.record import Columns, RecordLayout, ids_dtype_for
from howdah.spark import shipping
from howdah.spark.errors import translated
from howdah.spark.interrupts import interrupts
from howdah.spark.session import Application, in_container, session

ETL_FORMAT = 2
"""Raise it with every change that gives other bytes for the same source and configuration.

2: members of an oversized LSH bucket that were not all compared are in one split; rows of the same
signature are near duplicates in buckets of any size; a CSV with an unclosed quote is refused.
"""

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class EtlResult:
    """A committed dataset version."""

    path: str
    hash: str
    unchanged: bool
    """It was there already: nothing was read or written."""
    manifest: DatasetManifest
    report_path: str
    application: str | None = None
    """Spark's application id, where Spark was started."""
    ui: str | None = None
    """Address of its web pages."""

    def as_dict(self) -> dict:
        """What --json prints."""
        return {
            "dataset": self.path,
            "hash": self.hash,
            "unchanged": self.unchanged,
            "rows": {name: self.manifest.rows(name) for name in self.manifest.splits},
            "labels": self.manifest.labels,
            "drops": self.manifest.quality.get("drops", {}),
            "report": self.report_path,
            "application": self.application,
            "ui": self.ui,
        }


def run(
    config: Config,
    *,
    progress: Progress,
    encoder: Encoder | None = None,
    ready: Callable[[Application], None] | None = None,
) -> EtlResult:
    """Make the dataset that the config describes, unless it is there: the driver's whole work.

    `etl/submit.py` decides in which process and on which machine this runs.

    Args:
        config: the whole run configuration; `data`, `run.user` and `model.base` are used.
        progress: gets a line of text at each stage.
        encoder: that of `model.base`, where this process cannot load it.
        ready: called with the Spark application once it is there.

    Raises:
        ConfigError, DataError, ModelError, StorageError, ClusterError: nothing was committed, and
            what was written is removed again.
        Interrupted, Terminated: the same, after SIGINT or SIGTERM.
    """
    data = config.data
    with interrupts():
        source, encoder, there = prepare(config, progress, encoder)
        if there is not None:
            return there
        shipped = {}
        if shipping.on_yarn(data.spark) and not in_container():
            shipped = shipping.ship(config, "etl", progress).conf
        started: list[Application] = []

        def announce(application: Application) -> None:
            started.append(application)
            if shipping.on_yarn(data.spark):
                progress(f"application {application.id}, its pages: {application.ui}")
            if ready is not None:
                ready(application)

        progress(f"source {source.name} ({source.kind}); starting Spark on {data.spark.master}")
        try:
            with session(
                data.spark,
                hive=source.kind == "hive" or data.rejects_table is not None,
                shipped=shipped,
                user=config.run.user,
                ready=announce,
            ) as spark:
                if source.kind == "hive":
                    source = hive.resolved(spark, source, data)
                    there = _unchanged(config, source, encoder, progress)
                application = started[0].id if shipping.on_yarn(data.spark) and started else None
                result = there or _make(spark, config, source, encoder, application, progress)
        except BaseException:
            if shipped:
                sweep_until_quiet(data.dataset)
            raise
    if started:
        return replace(result, application=started[0].id, ui=started[0].ui)
    return result


def prepare(
    config: Config, progress: Progress, encoder: Encoder | None = None
) -> tuple[Source, Encoder, EtlResult | None]:
    """(source, encoder, the dataset if it is there already): what needs no Spark.

    Raises:
        ConfigError, DataError, ModelError, StorageError: the source or the base cannot be used.
    """
    if storage.scheme(config.data.dataset) == "memory":
        raise DataError(
            "Spark's tasks cannot write to memory://",
            where="data.dataset",
            got=config.data.dataset,
            remedy="give a path that all executors reach: a directory, hdfs://",
        )
    source = sources.resolve(config.data)
    encoder = encoder or Encoder.load(config.model.base, config.model.revision)
    there = None
    if source.identity is not None:
        there = _unchanged(config, source, encoder, progress)
    return source, encoder, there


def dataset_hash(config: Config, source: Source, encoder: Encoder) -> str:
    """The hash in v=<hash>: of the source's state, the data config, the tokenizer, the format."""
    # Where the data goes, by which name it was asked for and how Spark runs change no byte of it.
    # What is read of a table or query is in the source's identity.
    left_out = {"source", "docstring_packages", "dataset", "spark"}
    left_out |= {"partitions", "query_file", "rejects_table"}
    data = config.data.model_dump(mode="json", exclude=left_out)
    return content_hash(
        {
            "etl_format": ETL_FORMAT,
            "kind": source.kind,
            "source": source.identity,
            "data": data,
            "tokenizer": encoder.hash,
        }
    )


def _version(config: Config, hash_: str) -> str:
    return storage.join(config.data.dataset, f"v={hash_}")


def _unchanged(
    config: Config, source: Source, encoder: Encoder, progress: Progress
) -> EtlResult | None:
    hash_ = dataset_hash(config, source, encoder)
    version = _version(config, hash_)
    _sweep(config.data.dataset, None, progress)
    if not storage.exists(storage.join(version, MANIFEST)):
        return None
    progress(f"unchanged: {version}")
    return committed(version, unchanged=True)


def committed(version: str, *, unchanged: bool) -> EtlResult:
    """The result that a committed version is."""
    dataset = load_dataset(version)
    return EtlResult(
        path=version,
        hash=dataset.manifest.dataset_hash,
        unchanged=unchanged,
        manifest=dataset.manifest,
        report_path=storage.join(version, report.HTML),
    )


def _sweep(dataset: str, token: str | None, progress: Progress) -> None:
    try:
        swept = sweep(dataset, token)
    except StorageError as error:
        progress(f"left-overs of earlier runs could not be removed: {error.what} ({error.where})")
        return
    if swept:
        progress(f"removed {len(swept)} files that unfinished runs left")


def _make(
    spark: SparkSession,
    config: Config,
    source: Source,
    encoder: Encoder,
    application: str | None,
    progress: Progress,
) -> EtlResult:
    """Build and commit one version under a lease; the loser of a race takes the winner's."""
    hash_ = dataset_hash(config, source, encoder)
    version = _version(config, hash_)
    with contextlib.ExitStack() as stack:
        # last of all, when the lease has ended: what this run or a dead one left beside a manifest
        stack.callback(_sweep, config.data.dataset, None, progress)
        # Its end is seen to before it begins: an interrupt may come in the middle of that.
        lease = Lease(version, application)
        stack.push(lease)
        try:
            lease.__enter__()
            with (
                Scratch(version, lease.token) as scratch,
                Kept() as kept,
                translated("run the ETL"),
                credentials.Keeper(spark) as keeper,
            ):
                manifest = _write(
                    spark, config, source, encoder, version, hash_, lease.token, kept, scratch,
                    keeper, progress,
                )  # fmt: skip
            commit(version, manifest)
        except BaseException as error:
            discard(version, lease.token)
            failed = isinstance(error, HowdahError)
            if failed and storage.exists(storage.join(version, MANIFEST)):
                # Another run was faster with the same version; it may even have swept our files.
                progress(f"another run has made this version meanwhile: {version}")
                return committed(version, unchanged=True)
            raise
    rows = ", ".join(f"{name} {manifest.rows(name):,}" for name in manifest.splits)
    progress(f"committed {version} ({rows} rows)")
    return committed(version, unchanged=False)


def _write(
    spark: SparkSession,
    config: Config,
    source: Source,
    encoder: Encoder,
    version: str,
    hash_: str,
    token: str,
    kept: Kept,
    scratch: Scratch,
    keeper: credentials.Keeper,
    progress: Progress,
) -> DatasetManifest:
    """Everything but the commit: shards, reject table, report; returns the manifest to commit."""
    began = time.monotonic()
    data = config.data
    if source.kind == "tfrecord":
        built = build.from_records(spark, source, config, encoder, kept, progress)
    else:
        built = build.from_text(spark, source, config, encoder, kept, progress, scratch=scratch)
    encoded = built.encoded.persist()
    kept.append(encoded)
    table = _table(encoded, data.max_length)
    _refuse_empty_train(table, built)
    if data.balance != "none":
        counts = {label: n for (name, label), (n, _, _) in table.items() if name == "train"}
        built.quality["balance"] = {
            "how": data.balance,
            "ratio": data.balance_ratio,
            "before": {built.labels[label]: n for label, n in sorted(counts.items())},
        }
        encoded = shards.balance(
            encoded, data.balance, data.balance_ratio, counts, data.shuffle_seed
        ).persist()
        kept.append(encoded)
        table = _table(encoded, data.max_length)
    totals = _totals(table)
    layout = RecordLayout(
        ids_dtype="int64_list"
        if data.record_layout == "int64_list"
        else ids_dtype_for(encoder.vocab_size),
        columns=Columns(),
    )
    plan = shards.plan_shards(
        totals,
        shard_bytes=data.shard_bytes,
        num_shards=data.num_shards,
        bytes_per_token=layout.itemsize or 3,
    )
    placed = shards.place(encoded, plan, data.shuffle_seed)
    secrets = keeper.secrets(progress)
    splits = shards.write(
        placed, version, token, plan, layout, data.compression, encoder.vocab_size, secrets
    )
    progress(f"wrote {sum(len(s) for s in splits.values())} shards")
    quality = built.quality
    quality["at_max_length"] = sum(cut for _, _, cut in table.values())
    quality["reject_files"] = shards.write_rejects(built.rejected, version, token, keeper.secrets())
    if data.rejects_table is not None:
        hive_write.write_rejects(spark, data.rejects_table, hash_, version, quality["reject_files"])
        progress(f"rejected rows are in {data.rejects_table}, dataset={hash_}")
    quality["labels_without_training_rows"] = [
        name for n, name in enumerate(built.labels) if ("train", n) not in table
    ]
    if quality["labels_without_training_rows"]:
        progress("no training rows for " + ", ".join(quality["labels_without_training_rows"]))
    for name, fraction in (("validation", data.split.validation), ("test", data.split.test)):
        if fraction and name not in splits:
            progress(f"the {name} split is empty: too few rows for {fraction:.0%}")
    _refuse_changed(spark, config, source)
    quality["seconds"] = round(time.monotonic() - began, 2)
    manifest = DatasetManifest(
        dataset_hash=hash_,
        created=datetime.now(UTC).isoformat(timespec="microseconds"),
        etl_version=__version__,
        labels=built.labels,
        max_length=data.max_length,
        tokenizer=TokenizerEntry(
            hash=encoder.hash,
            vocab_size=encoder.vocab_size,
            pad_id=encoder.pad_id,
            source=config.model.base,
        ),
        record=RecordEntry(
            ids_dtype=layout.ids_dtype,
            columns={k: k for k in ("input_ids", "length", "label", "id")},
            compression=data.compression,
        ),
        splits=splits,
        source={
            "kind": source.kind,
            "name": source.name,
            "columns": data.columns.model_dump(),
            **(source.identity or {}),
        },
        seed=data.shuffle_seed,
        split_rule=split.rule(data.split),
        cleaning=data.clean.model_dump(),
        quality=quality,
    )
    report.write(version, manifest, built)
    return manifest


def _table(encoded, max_length: int) -> dict[tuple[str, int], tuple[int, int, int]]:
    """{(split, label): (rows, tokens, rows that reach max_length)}."""
    cut = F.sum((F.col("length") >= max_length).cast("int"))
    rows = encoded.groupBy("split", "label").agg(
        F.count("*").alias("n"), F.sum("length").alias("tokens"), cut.alias("cut")
    )
    return {(r["split"], r["label"]): (r["n"], r["tokens"], r["cut"]) for r in rows.collect()}


def _totals(table: dict[tuple[str, int], tuple[int, int, int]]) -> dict[str, tuple[int, int]]:
    out = {}
    for name in ("train", "validation", "test"):
        parts = [value for (split_name, _), value in table.items() if split_name == name]
        if parts:
            out[name] = (sum(p[0] for p in parts), sum(p[1] for p in parts))
    return out


def _refuse_empty_train(table: dict, built: Built) -> None:
    if not any(name == "train" for name, _ in table):
        raise DataError(
            "no row is left for training",
            expected="at least one row in the train split",
            got=f"{built.quality['kept']} rows kept of {built.quality['read']}",
            remedy="give more rows, or lower data.split.validation and data.split.test",
        )


def _refuse_changed(spark: SparkSession, config: Config, source: Source) -> None:
    """What was hashed must be what was read: files may not have changed since."""
    if source.kind == "hive":
        now = hive.resolved(spark, source, config.data).identity
    elif source.files:
        now = sources.resolve(config.data).identity
    else:
        return
    if now != source.identity:
        raise DataError(
            "the source changed while it was read",
            where=source.name,
            remedy="run `howdah etl` again once nothing writes to the source",
        )
