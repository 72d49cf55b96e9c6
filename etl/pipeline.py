"""The ETL from end to end: `run` makes a dataset version, or finds that it is there already."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from howdah import storage
from howdah.config.model import Config
from howdah.config.options.source import LAKES
from howdah.core import threads
from howdah.core.activity import Progress, Stages
from howdah.data.inputs import ENCODERS, AnyEncoder
from howdah.data.lineage import forgotten as marks
from howdah.data.lineage.forgotten import NONE, Forgotten
from howdah.data.manifest import (
    MANIFEST,
    DatasetManifest,
    commit,
    content_hash,
    load_dataset,
    version_name,
)
from howdah.errors import ClusterError, HowdahError, StorageError
from howdah.etl import report
from howdah.etl.history.turn import turn
from howdah.etl.sources import given
from howdah.etl.sources.source import Source
from howdah.etl.workspace import credentials
from howdah.etl.workspace.kept import Kept
from howdah.etl.workspace.scratch import Scratch
from howdah.etl.workspace.staging import (
    RunLease,
    adopt,
    discard,
    refuse_missing,
    sweep,
    sweep_until_quiet,
)
from howdah.etl.write import hive as hive_write
from howdah.spark import connectors, shipping, sizing
from howdah.spark.errors import translated
from howdah.spark.interrupts import interrupts
from howdah.spark.session import (
    SparkApplication,
    in_container,
    is_active,
    is_local_master,
    session,
)

if TYPE_CHECKING:
    from howdah.etl.history.past import Past

ETL_FORMAT = 5
"""Raise it with every change that gives other bytes for the same source and configuration.

A changed default of a key of `data` is such a change, since keys at their default are not hashed
(`dataset_hash`); a new key is none where its default does what was done without it.
tests/etl/test_version.py has the defaults of this format.

2: members of an oversized LSH bucket that were not all compared are in one split; rows of the same
signature are near duplicates in buckets of any size; a CSV with an unclosed quote is refused.
3: the hash is of the keys that differ from their default, and of the order of a mapping `labels`.
4: near duplicates by words and pairs of words, from a similarity of 0.7, characters in scripts
without blanks; bands by the threshold. Labels: NaN is none, JSON's 1.0 is 1, a partition
directory's 01 stays 01, the order of "01" and "1" is fixed; blanks at the ends of `data.labels` do
not count.
5: a key, and the first number of a content without one, belongs to the first row that passes the
gate, in an order of all rows; words of near duplicates have their combining marks; labels are
without invisible characters; images of 16 bits are scaled, transparent ones laid on white; a
stratified regression is divided at the tenths of a fixed sample; far too long texts are not
cleaned.
"""

_NOT_HASHED = frozenset(
    {
        # Where the data goes, by which name it was asked for and how Spark runs change no byte.
        "source", "dataset", "spark",
        # The source's identity covers what is read of a table or query.
        "partitions", "query_file", "rejects_table", "as_of", "jdbc",
        # What a version must have is judged when it is made.
        "expect",
        # The version that is appended to is hashed in its place.
        "append",
    }
)  # fmt: skip
"""Keys of `data` that change no byte of the dataset, or are hashed as the source's identity."""

_STAGES = (
    "start Spark", "read and clean", "find duplicates", "divide into splits", "encode and write",
    "report",
)  # fmt: skip

_DAEMON = "howdah.etl.launch.daemon"
_OF_THE_PLACE = (StorageError, ClusterError)
_DISCARD_SECONDS = 60.0
"""How long a run that has failed waits for storage to remove what it has written."""


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
            "task": self.manifest.task,
            "labels": self.manifest.labels,
            "drops": self.manifest.quality.get("drops", {}),
            "expectations": self.manifest.quality.get("expectations"),
            "look": self.manifest.quality.get("look", []),
            "parts": [part.model_dump() for part in self.manifest.parts],
            "report": self.report_path,
            "application": self.application,
            "ui": self.ui,
        }


def run(
    config: Config,
    *,
    progress: Progress,
    encoder: AnyEncoder | None = None,
    ready: Callable[[SparkApplication], None] | None = None,
) -> EtlResult:
    """Make the dataset that the config describes, unless it is there: the driver's whole work.

    `etl/launch/submit.py` decides in which process and on which machine this runs.

    Args:
        config: the whole run configuration; `data`, `run.user` and `model.base` are used.
        progress: gets a line of text at each stage, also from another thread.
        encoder: that of `model.base`, where this process cannot load it.
        ready: called with the Spark application once it is there.

    Raises:
        ConfigError, DataError, ModelError, StorageError, ClusterError: nothing was committed, and
            what was written is removed again.
        Interrupted, Terminated: the same, after SIGINT or SIGTERM.
    """
    data = config.data
    with interrupts(), Stages(_STAGES, progress) as stages:
        source, encoder, unchanged = prepare(config, progress, encoder)
        if unchanged is not None:
            return unchanged
        shipped, short = {}, False
        if shipping.on_yarn(data.spark) and not in_container() and not is_active():
            shipped = shipping.ship(config, "etl", progress).conf
            shipped |= sizing.executor_overhead(data.spark)
        if not in_container() and not is_active():
            shipped |= connectors.settings(config, progress, kind=source.kind)
        local = is_local_master(data.spark.master) and not is_active()
        if local and not data.append.enabled and not needs_hive(config):
            fast = sizing.for_small(source.size)
            shipped, short = fast | shipped, bool(fast)
        if local:
            shipped = {"spark.python.daemon.module": _DAEMON} | shipped
        started: list[SparkApplication] = []

        def announce(application: SparkApplication) -> None:
            started.append(application)
            if shipping.on_yarn(data.spark):
                progress(f"application {application.id}, its pages: {application.ui}")
            if ready is not None:
                ready(application)

        progress(f"source {source.name} ({source.kind}); Spark on {data.spark.master}")
        stages.begin(_STAGES[0])
        # The work's modules, with pandas, are loaded while the JVM starts.
        work = "howdah.etl.version"
        threads.start(importlib.import_module, work, name="etl-imports", failed=lambda error: None)
        try:
            with session(
                data.spark,
                hive=needs_hive(config),
                shipped=shipped,
                short=short,
                user=config.run.user,
                ready=announce,
            ) as spark:
                connectors.require(spark, source.kind)
                if source.identity is None:
                    source = given.resolved(spark, source, data)
                    unchanged = _unchanged(config, source, encoder, progress)
                elif data.rejects_table is not None:  # `prepare` may have left it to Spark
                    unchanged = _unchanged(config, source, encoder, lambda line: None)
                if unchanged is not None and lacks_rejects(config, unchanged.manifest):
                    _copy_rejects(spark, config, unchanged, progress)
                if unchanged is None and started and not is_local_master(data.spark.master):
                    _size(spark, config, source, progress)
                application = started[0].id if shipping.on_yarn(data.spark) and started else None
                result = unchanged or _make(spark, config, source, encoder, application, stages)
        except BaseException:
            if shipped and not local:
                sweep_until_quiet(data.dataset)
            raise
    if started:
        return replace(result, application=started[0].id, ui=started[0].ui)
    return result


def _size(spark: SparkSession, config: Config, source: Source, progress: Progress) -> None:
    """Settings for the source's size, in a session of our own on a cluster; a line with all that
    Howdah has set."""
    settings = sizing.for_source(config.data.spark, source.size)
    sizing.apply(spark, settings)
    if shipping.on_yarn(config.data.spark):  # what the application was started with
        settings = sizing.executor_overhead(config.data.spark) | settings
    if settings:
        progress(
            "Spark settings by size, where data.spark.conf gives none: "
            + ", ".join(f"{key}={value}" for key, value in settings.items())
        )


def needs_hive(config: Config) -> bool:
    """Whether the session needs Hive's tables: for the source, or for a copy of the rejects."""
    data = config.data
    # Iceberg's and Delta's tables of a catalogue of their own need none of it
    lake = data.format in LAKES and data.names_table and data.source.count(".") < 2
    return data.format == "hive" or lake or data.rejects_table is not None


def prepare(
    config: Config, progress: Progress, encoder: AnyEncoder | None = None
) -> tuple[Source, AnyEncoder, EtlResult | None]:
    """(source, encoder, the dataset if it is there already): what needs no Spark.

    Raises:
        ConfigError, DataError, ModelError, StorageError: the source or the base cannot be used.
    """
    source = given.resolve(config.data)
    kind = ENCODERS[config.data.kind]
    encoder = encoder or kind.load(config.model.base, config.model.revision)
    unchanged = None
    if source.identity is not None:
        unchanged = _unchanged(config, source, encoder, progress)
    if unchanged is not None and lacks_rejects(config, unchanged.manifest):
        unchanged = None  # Spark is needed all the same
    return source, encoder, unchanged


def lacks_rejects(config: Config, manifest: DatasetManifest) -> bool:
    """True if a version was made without `data.rejects_table`, or with another one. Its manifest
    cannot record that the table was written later, so this stays true afterwards."""
    table = config.data.rejects_table
    return table is not None and manifest.quality.get("rejects_table") != table


def _copy_rejects(
    spark: SparkSession, config: Config, unchanged: EtlResult, progress: Progress
) -> None:
    """Write the rejected rows of a version that is there into the table that it was made without.

    Of an appended version: those of its newest part.
    """
    table, files = config.data.rejects_table, unchanged.manifest.quality.get("reject_files", [])
    hive_write.write_rejects(spark, table, unchanged.hash, unchanged.path, files)
    progress(
        f"wrote the rejected rows of the existing version to {table}, dataset={unchanged.hash}"
    )


def dataset_hash(
    config: Config,
    source: Source,
    encoder: AnyEncoder,
    past: Past | None = None,
    gone: Forgotten = NONE,
) -> str:
    """The hash in v=<hash>: of the source's state, the data config, the tokenizer, the format, of
    the version that the rows are appended to, and of the marks of rows that are left out.

    Of the data config the keys whose values differ from their default, so that a new key leaves
    the hashes of all datasets as they are. A default that is given by name hashes as one that is
    not given.
    """
    data = config.data.model_dump(mode="json", exclude=_NOT_HASHED, exclude_defaults=True)
    if isinstance(config.data.labels, dict):  # its order numbers the labels, and JSON's is sorted
        data["labels"] = list(config.data.labels.items())
    return content_hash(
        {
            "etl_format": ETL_FORMAT,
            "kind": source.kind,
            "source": source.identity,
            "data": data,
            "tokenizer": encoder.hash,
            **({} if past is None else {"append": past.hashed}),
            **({} if gone.digest is None else {"forgotten": gone.digest}),
        }
    )


def _target(
    config: Config, source: Source, encoder: AnyEncoder
) -> tuple[Past | None, Forgotten, str, str]:
    """(what is appended to, marks of rows that are left out, hash, path) of the version to make."""
    past = None
    if config.data.append.enabled:
        from howdah.etl.history.past import find

        past = find(config.data, source, etl_format=ETL_FORMAT, tokenizer=encoder.hash)
    gone = marks.load(config.data.dataset)
    hash_ = dataset_hash(config, source, encoder, past, gone)
    return past, gone, hash_, storage.join(config.data.dataset, version_name(hash_))


def _unchanged(
    config: Config, source: Source, encoder: AnyEncoder, progress: Progress
) -> EtlResult | None:
    past, _, _, version = _target(config, source, encoder)
    _sweep(config.data.dataset, progress)
    if past is not None and past.unchanged:
        from howdah.etl.version import expect_of_part

        progress(f"unchanged: {past.parent.path} has the part {past.part}")
        expect_of_part(config, past, progress)  # other ones may have been asked of it
        return committed(past.parent.path, unchanged=True)
    if not storage.exists(storage.join(version, MANIFEST)):
        return None
    from howdah.etl.version import expectations

    progress(f"unchanged: {version}")
    result = committed(version, unchanged=True)
    expectations(config, result.manifest, progress)  # other ones may have been asked of it
    return result


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


def _sweep(dataset: str, progress: Progress) -> None:
    try:
        swept = sweep(dataset)
    except StorageError as error:
        progress(f"leftovers of earlier runs could not be removed: {error.what} ({error.where})")
        return
    if swept:
        progress(f"removed {len(swept)} files that unfinished runs left")


def _make(
    spark: SparkSession,
    config: Config,
    source: Source,
    encoder: AnyEncoder,
    application: str | None,
    progress: Stages,
) -> EtlResult:
    """Build and commit one version under a lease; the loser of a race takes the winner's."""
    from howdah.etl.history import past as history
    from howdah.etl.version import NewVersion, write_files

    past, gone, hash_, path = _target(config, source, encoder)
    if past is not None:
        history.say(progress, past)
    path = storage.absolute(path)  # executors may have another working directory
    new = NewVersion(
        spark=spark, config=config, source=source, encoder=encoder, progress=progress,
        hash=hash_, directory=path, past=past, gone=gone,
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        # last of all, when the lease has ended: what this run or a dead one left beside a manifest
        stack.callback(_sweep, config.data.dataset, progress)
        # Register the lease's cleanup before it begins: an interrupt may arrive at any time.
        lease = RunLease(path, application)
        stack.push(lease)
        try:
            for directory in (config.data.dataset, path):
                storage.make_dirs(directory, mode=config.most_open)
            lease.__enter__()
            adopt(path, lease.token)
            scratch = stack.enter_context(Scratch(path, lease.token))
            with (
                Kept() as kept,
                translated("run the ETL"),
                credentials.Keeper(spark) as keeper,
            ):
                manifest = write_files(new, lease.token, scratch, kept, keeper)
            lease.renew()  # a sweep that begins from here on leaves our files alone
            refuse_missing(path, manifest)
            appends = contextlib.nullcontext()
            if past is not None:
                appends = turn(config.data.dataset, past.parent)
            with appends:
                commit(path, manifest)
        except BaseException as error:
            failed = isinstance(error, HowdahError)
            # An interrupt, or a cluster's or storage's failure, says nothing against the rows.
            well = not isinstance(error, Exception) or isinstance(error, _OF_THE_PLACE)
            # What storage does not remove now, the next run sweeps; report the first error.
            with contextlib.suppress(StorageError), storage.waiting_at_most(_DISCARD_SECONDS):
                if discard(path, lease.token, whole_stays=well):
                    progress("the rows, already split, are kept: `howdah etl` with the same source"
                             " and configuration continues from them")  # fmt: skip
                if failed and storage.exists(storage.join(path, MANIFEST)):
                    # Another run was faster with the same version; it may have swept our files.
                    progress.end(failed=True)
                    progress(f"another run has made this version meanwhile: {path}")
                    return committed(path, unchanged=True)
            raise
    progress.end()
    rows = ", ".join(f"{name} {manifest.rows(name):,}" for name in manifest.splits)
    progress(f"committed {path} ({rows} rows)")
    return committed(path, unchanged=False)
