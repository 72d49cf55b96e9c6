"""The files of one dataset version: shards, reject table, report; etl/pipeline.py commits them."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from howdah import __version__, redact, storage
from howdah.config.data import DataSection
from howdah.config.model import Config
from howdah.config.splits import SPLITS, TEST, TRAIN, VALIDATION
from howdah.core.activity import Stages
from howdah.data.images import ImageEncoder
from howdah.data.inputs import AnyEncoder
from howdah.data.lineage.forgotten import NONE, Forgotten
from howdah.data.manifest import (
    MANIFEST,
    DatasetManifest,
    RecordEntry,
    ShardEntry,
    TokenizerEntry,
    created_now,
    load_dataset,
    version_before,
    version_name,
)
from howdah.data.record import Columns, RecordLayout, ids_dtype_for
from howdah.errors import DataError
from howdah.etl import attention, build, expect, report
from howdah.etl import built as built_rows
from howdah.etl.built import Built
from howdah.etl.history import ledger
from howdah.etl.history.past import Past
from howdah.etl.rows import split
from howdah.etl.sources import given
from howdah.etl.sources.source import Source
from howdah.etl.workspace import credentials
from howdah.etl.workspace.kept import Kept
from howdah.etl.workspace.scratch import Scratch
from howdah.etl.write import hive as hive_write
from howdah.etl.write import shards
from howdah.pages.figures import percent

SHUFFLE_SEED = 17
"""Seed of the global shuffle into shards. Training shuffles again by training.seed: this one only
has to stay the same, so that the same rows make the same shards."""
BALANCE_RATIO = 1.0
"""Largest / smallest class after `data.balance`: the classes are made equally large. For a part of
the way there are training.class_weights."""

Table = dict[tuple[str, int], tuple[int, int, int]]
"""{(split, label): (rows, tokens, rows that reach max_length)}"""


@dataclass(frozen=True, kw_only=True)
class NewVersion:
    """One version to make: of what, and where."""

    spark: SparkSession
    config: Config
    source: Source
    encoder: AnyEncoder
    progress: Stages
    hash: str
    directory: str
    past: Past | None = None
    """What the rows are appended to; None: the version has these rows alone."""
    gone: Forgotten = NONE
    """Rows that are left out."""

    @property
    def longest(self) -> int:
        """Tokens of the longest row that the dataset may hold."""
        images = isinstance(self.encoder, ImageEncoder)
        return self.encoder.tokens if images else self.config.data.max_length

    @property
    def layout(self) -> RecordLayout:
        """The layout of the records."""
        if isinstance(self.encoder, ImageEncoder):
            return RecordLayout(
                ids_dtype="uint8",
                columns=Columns(input_ids="image", length=None),
                image=self.encoder.image,
                image_tokens=self.encoder.tokens,
            )
        return RecordLayout(
            ids_dtype=ids_dtype_for(self.encoder.vocab_size),
            columns=Columns(),
            task=self.config.data.task,
        )


def write_files(
    new: NewVersion, token: str, scratch: Scratch, kept: Kept, keeper: credentials.Keeper
) -> DatasetManifest:
    """Everything but the commit: shards, reject table, report; returns the manifest to commit.

    Args:
        token: of this run's lease: part of the names of its files.
    """
    began = time.monotonic()
    if new.past is not None:
        past = replace(new.past, secrets=keeper.secrets(new.progress))
        new = replace(new, past=past)
    new.progress.begin("read and clean")
    built = _build(new, scratch, kept)
    new.progress.begin("encode and write")
    encoded, table = _balanced(new, built, scratch, kept)
    splits = _write_shards(new, encoded, _totals(table), token, keeper)
    if new.layout.image is None:
        built.quality["at_max_length"] = sum(cut for _, _, cut in table.values())
    # Judged before anything is written outside the version's directory, and of the new rows alone
    # where they are appended: beside a year's rows those of a day would not show.
    manifest = _manifest(new, built, splits)
    judged = expectations(new.config, manifest, new.progress, new.past)
    if judged is not None:
        built.quality["expectations"] = judged
    _write_rejects(new, built, token, keeper)
    whole = {name: [*_stays(new, name), *splits.get(name, [])] for name in SPLITS}
    trained = {int(number) for shard in whole[TRAIN] for number in shard.class_counts}
    built.quality["labels_without_training_rows"] = [
        name
        for n, name in enumerate(built.labels)
        if n not in trained and new.config.data.task != "regression"
    ]
    new.progress.begin("report")
    built.quality["look"] = attention.findings(
        built.labels, whole, built.quality, new.config.data, built.texts
    )
    _warn_empty(new, built, splits)
    _refuse_changed(new.spark, new.config, new.source)
    built.quality["software"] = _software(new.spark)
    built.quality["seconds"] = round(time.monotonic() - began, 2)
    manifest = _manifest(new, built, splits)
    if new.past is not None:
        manifest = _appended(new, built, manifest, token, kept)
    texts, run_directory = new.config.report.texts, new.config.run.directory
    report.write(new.directory, manifest, built, texts, run_directory)
    return manifest


def _stays(new: NewVersion, split: str) -> list[ShardEntry]:
    """Shards of the version before, where rows are appended to it."""
    return [] if new.past is None else new.past.staying(split)


def _appended(
    new: NewVersion, built: Built, manifest: DatasetManifest, token: str, kept: Kept
) -> DatasetManifest:
    """Write the ledger of the new rows; the manifest with those of the version before."""
    rows = built.kept.select("id", "text", "label", "key", "split", F.col("group").alias("cluster"))
    signed = ledger.signed(rows, new.config.data.dedup).persist()
    kept.append(signed)
    files = ledger.write(
        signed,
        new.directory,
        token,
        part=new.past.part,
        buckets=new.past.buckets,
        secrets=new.past.secrets,
        near=new.config.data.dedup.near,
    )
    counts = {split: manifest.rows(split) for split in manifest.splits}
    whole = new.past.appended(manifest, files, counts)
    new.progress(
        f"part {new.past.part}: "
        + (", ".join(f"{split} {n:,}" for split, n in counts.items()) or "no new row")
        + f"; ledger of {sum(file.rows for file in files if file.kind == ledger.ROWS):,} rows"
    )
    return whole


def expectations(
    config: Config,
    manifest: DatasetManifest,
    progress: Callable[[str], None],
    past: Past | None = None,
) -> dict | None:
    """What `data.expect` asks of a version and what was found; None: it asks nothing.

    Args:
        past: what the version's rows are appended to: the version that it is compared with.

    Raises:
        ExpectationsFailed: something is not met.
    """
    options = config.data.expect
    if not options.asks:
        return None
    parent = None
    if options.max_shift is not None:
        before = version_before(config.data.dataset, manifest)
        parent = before if past is None else past.parent
    expected = expect.judge(manifest, options, parent)
    for one in expected:
        if one.found is None:
            progress(f"data.expect.{one.key} is not judged: {one.detail}")
    path = storage.join(config.data.dataset, version_name(manifest.dataset_hash))
    expect.refuse(expected, path)
    return expect.as_quality(expected, parent)


def expect_of_part(config: Config, past: Past, progress: Callable[[str], None]) -> None:
    """Judge `data.expect` of a part that is there already, as when it was appended: by its own rows
    and counts, which the version that it was read for has.

    Raises:
        ExpectationsFailed: something is not met.
    """
    part = past.replaced
    if part is None or not config.data.expect.asks:
        return
    path = storage.join(config.data.dataset, part.version)
    if not storage.exists(storage.join(path, MANIFEST)):
        progress(f"data.expect is not judged: {path}, for which the part was read, is gone")
        return
    manifest = load_dataset(path).manifest
    part_shards = {
        split: [shard for shard in shards if shard.part == part.name]
        for split, shards in manifest.splits.items()
    }
    if any(part.rows.values()) and not any(part_shards.values()):
        progress(f"data.expect is not judged: the part {part.name} was merged with others")
        return
    expectations(config, manifest.model_copy(update={"splits": part_shards}), progress)


def _build(new: NewVersion, scratch: Scratch, kept: Kept) -> Built:
    """Rows from the source, encoded and split."""
    arguments = (new.spark, new.source, new.config, new.encoder, kept, new.progress)
    if new.source.kind == "tfrecord":
        return build.from_records(*arguments, gone=new.gone)
    if new.config.data.kind == "image":
        return build.from_images(*arguments, scratch=scratch, gone=new.gone)
    before = built_rows.resumed(new.spark, new.config.data, new.encoder, scratch, new.progress)
    return before or build.from_text(*arguments, scratch=scratch, past=new.past, gone=new.gone)


def _balanced(
    new: NewVersion, built: Built, scratch: Scratch, kept: Kept
) -> tuple[DataFrame, Table]:
    """The encoded rows, balanced over the labels of the train split if asked, and their counts."""
    data = new.config.data
    if built.keep_encoded is not None:
        encoded = built.keep_encoded()
    else:
        encoded = built.encoded.persist()
        kept.append(encoded)
    table = _table(encoded, new.longest)
    if not _stays(new, TRAIN):
        _refuse_empty_train(table, built)
    if data.balance == "none":
        return encoded, table
    counts = {label: n for (name, label), (n, _, _) in table.items() if name == TRAIN}
    built.quality["balance"] = {
        "how": data.balance,
        "ratio": BALANCE_RATIO,
        "before": {built.labels[label]: n for label, n in sorted(counts.items())},
    }
    balanced = shards.balance(encoded, data.balance, BALANCE_RATIO, counts, SHUFFLE_SEED).persist()
    kept.append(balanced)
    return balanced, _table(balanced, new.longest)


def _write_shards(
    new: NewVersion,
    encoded: DataFrame,
    totals: dict[str, tuple[int, int]],
    token: str,
    keeper: credentials.Keeper,
) -> dict[str, list[ShardEntry]]:
    """Write the rows as shards; {split: its shards}.

    Args:
        totals: {split: (rows, tokens)}.
    """
    if not totals:  # a part that holds nothing but copies
        return {}
    data, layout = new.config.data, new.layout
    if layout.image is None:
        a_token, stored = layout.itemsize or 3, shards.ids_type(new.encoder.vocab_size)
    else:
        a_token, stored = layout.image.values / layout.image_tokens, np.dtype(np.uint8)
    plan = shards.plan_shards(
        totals,
        shard_bytes=data.shard_bytes,
        num_shards=data.num_shards,
        bytes_per_token=a_token,
    )
    placed = shards.place(encoded, plan, SHUFFLE_SEED)
    splits = shards.write(
        placed, new.directory, token, plan, layout, data.compression, stored,
        keeper.secrets(new.progress),
    )  # fmt: skip
    new.progress(f"wrote {sum(len(s) for s in splits.values())} shards")
    return splits


def _write_rejects(new: NewVersion, built: Built, token: str, keeper: credentials.Keeper) -> None:
    """Write the rejected rows beside the shards, and into data.rejects_table if it is given."""
    files = shards.write_rejects(built.rejected, new.directory, token, keeper.secrets())
    built.quality["reject_files"] = files
    table = new.config.data.rejects_table
    if table is not None:
        hive_write.write_rejects(new.spark, table, new.hash, new.directory, files)
        built.quality["rejects_table"] = table
        new.progress(f"rejected rows are in {table}, dataset={new.hash}")


def _warn_empty(new: NewVersion, built: Built, splits: dict[str, list[ShardEntry]]) -> None:
    """Report labels and splits that have no rows."""
    if missing := built.quality["labels_without_training_rows"]:
        new.progress("no training rows for " + ", ".join(missing))
    if new.past is not None and new.past.parent is not None:
        return  # a day may be too small to have rows in each, and frozen splits get none
    options = new.config.data.split
    for name, size in ((VALIDATION, options.validation), (TEST, options.tested)):
        if size and name not in splits:
            shown = percent(size) if size < 1 else f"{size:,} rows"
            new.progress(f"the {name} split is empty: too few rows for {shown}")


def _manifest(
    new: NewVersion, built: Built, splits: dict[str, list[ShardEntry]]
) -> DatasetManifest:
    data, source, encoder, layout = new.config.data, new.source, new.encoder, new.layout
    return DatasetManifest(
        dataset_hash=new.hash,
        created=created_now(data.dataset),
        etl_version=__version__,
        task=data.task,
        pairs=data.columns.text_pair is not None,
        labels=built.labels,
        max_length=new.longest,
        tokenizer=TokenizerEntry(
            hash=encoder.hash,
            vocab_size=encoder.vocab_size,
            pad_id=encoder.pad_id,
            source=redact.text(new.config.model.base),
        ),
        record=RecordEntry(
            ids_dtype=layout.ids_dtype,
            columns={key: name for key, name in vars(layout.columns).items() if name is not None},
            compression=data.compression,
            image=layout.image,
        ),
        splits=splits,
        source=redact.plain(_described(source, data), names=False),
        seed=SHUFFLE_SEED,
        split_rule=split.rule(data.split),
        cleaning=data.clean.model_dump() if layout.image is None else {},
        quality=built.quality,
    )


def _software(spark: SparkSession) -> dict[str, str]:
    """Versions of what made the dataset; `etl_version` has Howdah's."""
    import tokenizers

    return {
        "spark": spark.version,
        "python": platform.python_version(),
        "tokenizers": tokenizers.__version__,
        "numpy": np.__version__,
    }


def _described(source: Source, data: DataSection) -> dict:
    """The source in the manifest: the mapped columns, and its state when it was read."""
    state = dict(source.identity or {})
    if "columns" in state:  # of a Hive table: [name, type] of each
        state["schema"] = state.pop("columns")
    if source.query is not None:  # of which the state has the hash
        state["sql"] = source.query
    return {
        "kind": source.kind,
        "name": source.name,
        "columns": data.columns.model_dump(),
        **state,
    }


def _table(encoded: DataFrame, max_length: int) -> Table:
    cut = F.sum((F.col("length") >= max_length).cast("int"))
    rows = encoded.groupBy("split", "label").agg(
        F.count("*").alias("n"), F.sum("length").alias("tokens"), cut.alias("cut")
    )
    return {(r["split"], r["label"]): (r["n"], r["tokens"], r["cut"]) for r in rows.collect()}


def _totals(table: Table) -> dict[str, tuple[int, int]]:
    """{split: (rows, tokens)}"""
    totals = {}
    for name in SPLITS:
        parts = [value for (split_name, _), value in table.items() if split_name == name]
        if parts:
            totals[name] = (sum(p[0] for p in parts), sum(p[1] for p in parts))
    return totals


def _refuse_empty_train(table: Table, built: Built) -> None:
    if not any(name == TRAIN for name, _ in table):
        raise DataError(
            "no row is left for training",
            got=f"{built.quality['kept']} rows kept of {built.quality['read']}",
            remedy="give more rows, or lower data.split.validation and data.split.test",
        )


def _refuse_changed(spark: SparkSession, config: Config, source: Source) -> None:
    """What was hashed must be what was read: files may not have changed since."""
    if given.pinned(source):
        return
    if given.by_spark(source):
        now = given.resolved(spark, source, config.data).identity
    elif source.files:
        now = given.resolve(config.data).identity
    else:
        return
    if now != source.identity:
        raise DataError(
            "the source changed while it was read",
            where=source.name,
            remedy="run `howdah etl` again once nothing writes to the source",
        )
