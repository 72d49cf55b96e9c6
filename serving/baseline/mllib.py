"""The baseline by Spark MLlib: n-grams hashed into buckets, IDF, logistic regression, and Spark's
CrossValidator for the regularisation.

Executors read the dataset's TFRecords (each shard's checksum is compared with the manifest's). The
driver holds coefficients, and logits of the splits that are evaluated.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from howdah.config.loader import Config
from howdah.config.splits import TRAIN
from howdah.core.activity import Progress
from howdah.data.manifest import Dataset
from howdah.data.splits.class_weights import class_weights
from howdah.data.splits.shards import ShardSet, layout_of, node_cache
from howdah.errors import ConfigError, DataError
from howdah.hadoop.kerberos import logged_in
from howdah.models.metrics import metrics
from howdah.packaging import cluster_paths
from howdah.serving.baseline.executor import ROWS, rows_of
from howdah.serving.baseline.linear import all_classes
from howdah.serving.baseline.measured import (
    Measured,
    gib,
    memory_limit,
    strengths,
    wanted_splits,
)
from howdah.spark import shipping
from howdah.spark.errors import crossing, translated
from howdah.spark.interrupts import interrupts
from howdah.spark.paths import spark_path
from howdah.spark.session import Application, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FOLDS = 3
"""Of Spark's CrossValidator, over rows of the training split."""
_VECTORS = 60
"""Copies of the coefficients in the driver: L-BFGS's history, and its arrays in Java and Python."""


def measure(config: Config, dataset: Dataset, progress: Progress) -> Measured:
    """The baseline of a dataset of any size, on `data.spark.master`; the driver is this process.

    Raises:
        ConfigError: the driver's part would not fit into its memory, or nodes cannot read the
            dataset.
        ClusterError: Spark is not installed, does not start or fails.
        Interrupted, Terminated: after SIGINT or SIGTERM; the application is ended.
    """
    options = config.data.spark
    _check(config, dataset)
    splits = wanted_splits(config, dataset)
    train = ShardSet(dataset, TRAIN, cache=node_cache(config.training))
    weights_C = class_weights(config.training, train)
    with interrupts("the baseline"), logged_in(*options.login):
        shipped = shipping.ship(config, "etl", progress).conf if shipping.on_yarn(options) else {}
        started: list[Application] = []
        progress(f"starting Spark on {options.master}")
        with session(
            options, shipped=shipped, user=config.run.user, ready=started.append,
            name="howdah baseline",
        ) as spark, translated("compute the baseline"):  # fmt: skip
            application = started[0].id if started and shipping.on_yarn(options) else None
            if application:
                progress(f"application {application}, its pages: {started[0].ui}")
            return _measured(spark, config, dataset, splits, weights_C, application, progress)


def _check(config: Config, dataset: Dataset) -> None:
    options, labels = config.data.spark, len(dataset.manifest.labels)
    shipping.refuse_two_identities(config)
    if options.home is not None:
        raise ConfigError(
            "the baseline runs with the PySpark that is installed here",
            where="data.spark.home",
            got=options.home,
            remedy="leave it out (--set data.spark.home=null): Spark's jars are shipped to YARN",
        )
    if shipping.on_yarn(options):
        cluster_paths.refuse_local({"data.dataset": dataset.path})
    held_out = max(dataset.manifest.rows(split) for split in wanted_splits(config, dataset))
    features = config.baseline.max_features
    needed = features * labels * 8 * _VECTORS + held_out * labels * 8 * 4
    limit, named = memory_limit(config)
    if needed > limit:
        raise ConfigError(
            "the baseline would take too much memory in Spark's driver",
            where="baseline.max_bytes",
            expected=f"at most {gib(limit)} ({named})",
            got=f"up to {gib(needed)}: {features:,} features, {labels} classes,"
            f" {held_out:,} rows to evaluate",
            remedy="raise it and data.spark.driver_memory, or lower baseline.max_features",
        )


def _measured(
    spark: SparkSession,
    config: Config,
    dataset: Dataset,
    splits: list[str],
    weights_C: np.ndarray | None,
    application: str | None,
    progress: Progress,
) -> Measured:
    from pyspark.ml import Pipeline
    from pyspark.ml.classification import LogisticRegression
    from pyspark.ml.evaluation import MulticlassClassificationEvaluator
    from pyspark.ml.feature import IDF, HashingTF, Normalizer
    from pyspark.ml.tuning import CrossValidator, ParamGridBuilder

    options, values, rows = config.baseline, strengths(config), dataset.manifest.rows(TRAIN)
    hashed = HashingTF(inputCol="grams", outputCol="counts", numFeatures=options.max_features)

    def table(split: str) -> DataFrame:
        found = _read(spark, dataset, split, options.ngrams, weights_C)
        return _kept(spark, hashed.transform(found).select("label", "weight", "counts"))

    train = table(TRAIN)
    try:
        _require_classes(train, dataset)
        regression = LogisticRegression(
            featuresCol="features", weightCol="weight", family="multinomial", maxIter=1_000,
            standardization=False,  # the same objective as scikit-learn's
        )  # fmt: skip
        pipeline = Pipeline(
            stages=[
                IDF(inputCol="counts", outputCol="idf", minDocFreq=options.min_rows),
                Normalizer(inputCol="idf", outputCol="features"),
                regression,
            ]
        )
        # scikit-learn sums the rows' losses, MLlib takes their mean.
        grid = ParamGridBuilder().addGrid(regression.regParam, [1.0 / (c * rows) for c in values])
        grid = grid.build()
        tried: dict[str, float | None] = {}
        if len(grid) > 1:
            progress(f"choosing baseline.c among {len(grid)} by {_FOLDS} folds of {rows:,} rows")
            validator = CrossValidator(
                estimator=pipeline,
                estimatorParamMaps=grid,
                evaluator=MulticlassClassificationEvaluator(metricName="logLoss"),
                numFolds=_FOLDS,
                seed=config.training.seed,
            )
            found = validator.fit(train)
            tried = {f"{c:g}": loss for c, loss in zip(values, found.avgMetrics, strict=True)}
            number, model = int(np.argmin(found.avgMetrics)), found.bestModel
        else:
            number, model = 0, pipeline.fit(train, grid[0])
    finally:
        train.unpersist()
    return Measured(
        by="spark",
        features=options.max_features,
        c=values[number],
        tried=tried,
        chosen_by=f"log loss of Spark's CrossValidator, {_FOLDS} folds of the training split"
        if tried
        else "baseline.c",
        converged=None,
        metrics={split: _evaluated(model, table(split), dataset, rows) for split in splits},
        packages=("pyspark", "numpy"),
        application=application,
    )


def _require_classes(train: DataFrame, dataset: Dataset) -> None:
    classes = train.select("label").distinct().count()
    if classes < 2:
        raise DataError(
            "the training split has rows of one class only",
            where=dataset.path,
            expected="rows of two classes or more",
            remedy="give the dataset rows of other labels",
        )


def _kept(spark: SparkSession, frame: DataFrame) -> DataFrame:
    """The frame, computed and persisted. Shards go to Python one by one: a batch of several could
    exceed what an Arrow batch may hold."""
    key = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(key)
    spark.conf.set(key, "1")
    try:
        frame.persist().count()
    finally:
        spark.conf.set(key, before)
    return frame


def _evaluated(model: Any, table: DataFrame, dataset: Dataset, rows: int) -> dict[str, Any]:
    """Metrics of a split, by the code that the model's come from.

    Args:
        model: the fitted pipeline.
        rows: of the training split.
    """
    from pyspark.ml.functions import vector_to_array
    from pyspark.sql import functions as F

    raw = vector_to_array(F.col("rawPrediction")).alias("raw")
    predicted = model.transform(table)
    found = predicted.select(F.col("label").cast("int").alias("label"), raw).toPandas()
    table.unpersist()
    logits = np.stack(found["raw"].to_numpy())
    # Spark has columns up to the highest class with training rows, -inf for those without between.
    present = np.flatnonzero(np.isfinite(logits).all(axis=0))
    labels = dataset.manifest.labels
    logits = all_classes(logits[:, present], present, len(labels), rows)
    return metrics.classification_metrics(found["label"].to_numpy(), logits, labels)


# ------------------------------------------------------------------------------------ reading
def _read(
    spark: SparkSession,
    dataset: Dataset,
    split: str,
    ngrams: int,
    weights_C: np.ndarray | None,
) -> DataFrame:
    """A split's rows as ROWS: a task reads each shard."""
    entries = dataset.manifest.splits[split]
    files = spark.read.format("binaryFile").load(
        [spark_path(dataset.shard_path(entry)) for entry in entries]
    )
    work = partial(
        rows_of,
        entries={entry.name: entry for entry in entries},
        layout=layout_of(dataset),
        ngrams=ngrams,
        weights=None if weights_C is None else weights_C.tolist(),
    )
    shards = files.select("path", "content").repartition(len(entries), "path")
    return shards.mapInArrow(crossing(work), ROWS)
