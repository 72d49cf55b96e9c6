"""Configuration keys that no longer exist, and what stands in the place of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

REMOVED: dict[str, str] = {
    "alerts.disk_bytes": "An alert of kind disk is sent when less than 5 GiB are free.",
    "alerts.stall_factor": (
        "A job has stalled after alerts.stall_seconds without a step, but not before 20 median "
        "steps have passed."
    ),
    "alerts.timeout_seconds": "A command may take 10 seconds.",
    "alerts.webhook": "alerts.command gets the alert on its stdin: curl posts it to an address.",
    "alerts.webhook_file": (
        "alerts.command gets the alert on its stdin: curl reads the address from a file (--config)."
    ),
    "baseline": (
        "The baseline counts the 200,000 single token ids and pairs that most rows have, in two "
        "rows at least; C is 1 or 10, whichever is better on validation, and it may take 8 GiB."
    ),
    "checkpoint.max_failures": "checkpoint.max_failure_minutes says for how long saves may fail.",
    "cost": (
        "run.json's `hours` has what a run has used, in hours of CPUs, vcores, GiB and GPUs: "
        "multiply them by your prices."
    ),
    "data.append.buckets": "A ledger has 16 buckets.",
    "data.balance_ratio": (
        "data.balance makes the classes equally large; for less, use training.class_weights."
    ),
    "data.csv.max_line_breaks": (
        "A quoted field may have 1,000 line breaks; data.csv.multiline: false reads each line "
        "by itself."
    ),
    "data.dedup.bands": "The bands follow from data.dedup.threshold.",
    "data.dedup.conflict.share": (
        "The policy majority asks for nine rows in ten with the same label."
    ),
    "data.dedup.max_bucket_size": (
        "Up to 1,000 texts of a bucket are all compared; a higher data.dedup.ngram makes the "
        "buckets smaller."
    ),
    "data.dedup.num_permutations": "A MinHash signature has 128 entries.",
    "data.docstring_packages": (
        "`python -m tools.demo.corpus FILE PACKAGE ...` writes that corpus as Parquet, for "
        "data.source."
    ),
    "data.forgotten": (
        "Rows that `howdah model forget` has removed are left out and counted where the source has "
        "them again."
    ),
    "data.image": (
        "An image has at least 8 pixels on each side, at most 50 million pixels and 64 MiB."
    ),
    "data.jdbc.fetch_size": "A task fetches 1,000 rows at once.",
    "data.jdbc.partitions": "Eight tasks read a table by ranges.",
    "data.jdbc.predicates": "data.jdbc.partition_column divides the rows among tasks.",
    "data.mode": "run.mode holds for new dataset directories as well.",
    "data.quality.leakage_sample": (
        "1,000 rows of validation, and of test, are looked up among the training rows."
    ),
    "data.quality.leakage_similarity": (
        "A looked-up row counts as a near duplicate from a similarity of 0.6 on."
    ),
    "data.record_layout": "Token ids are stored as bytes.",
    "data.shuffle_seed": (
        "The rows are shuffled into shards with a fixed seed; training shuffles them by "
        "training.seed."
    ),
    "data.spark.driver_edges": (
        "Spark's driver joins up to 2 million pairs of near duplicates itself."
    ),
    "data.spark.staging": "yarn.staging is the directory for all shipped files.",
    "data.split.unknown": (
        "data.quality.unknown_label holds for a value that names no split as well."
    ),
    "data.tfrecord.id": "data.columns.id names the feature.",
    "data.tfrecord.label": "data.columns.label names the feature.",
    "drift.failed": "A rise of 2 percentage points of failed rows matters.",
    "drift.history": (
        "`howdah drift --last` says how many partitions the page shows; without it there are 30."
    ),
    "drift.quantile": "Chance alone exceeds a limit in one of a thousand partitions.",
    "drift.tokens": "A Jensen-Shannon distance of 0.1 above that of the training split matters.",
    "drift.unseen": "A rise of 5 percentage points of tokens that training never had matters.",
    "evaluation.predictions": "The predictions of the last evaluation are always written.",
    "job.attempts": (
        "job.max_restarts says how many failures the job survives; 0 ends it with the first one."
    ),
    "job.contact_seconds": "Driver and agents tolerate 60 seconds without contact.",
    "job.gang_attempts": "Workers are requested ten times, for job.gang_seconds each time.",
    "job.gloo_timeout_seconds": "Gloo waits for two thirds of job.hang_seconds.",
    "job.node_failures": "A node is excluded after three failures of workers there.",
    "model.attention_dropout": "model.dropout is the rate of the attention weights as well.",
    "model.classifier_dropout": "model.dropout is the rate before the classifier as well.",
    "publish.mlflow.enabled": (
        "publish.mlflow.mode: reference (or full) makes MLflow's registry follow what is published."
    ),
    "publish.mlflow.name": (
        "The registered model has the name of the published one: publish.name, else run.name."
    ),
    "serve.grace_seconds": "After a SIGTERM requests are answered for up to 30 seconds.",
    "serve.max_batch_tokens": "A batch has up to 1,024 tokens, padding included.",
    "serve.max_bytes": "The body of a request may have 2 MiB.",
    "serve.max_queue": "512 texts may wait.",
    "serve.max_wait_ms": "A batch with room waits 2 milliseconds for more texts.",
    "serve.read_seconds": "A client has 30 seconds to send its request.",
    "serve.reload_seconds": "The server looks for another current version every 5 seconds.",
    "serve.request_seconds": (
        "A request waits 60 seconds for its answer; its header X-Timeout-Ms may shorten that."
    ),
    "serve.shadow": "`howdah score --model NAME@4` classifies the same texts by another version.",
    "serve.vcores": "A server's container on YARN has serve.threads vcores, or one.",
    "tracking.mlflow.experiment": "Set the environment variable MLFLOW_EXPERIMENT_NAME instead.",
    "training.adam_beta1": "AdamW's betas are 0.9 and 0.999.",
    "training.adam_beta2": "AdamW's betas are 0.9 and 0.999.",
    "training.adam_epsilon": "AdamW's epsilon is 1e-8.",
    "training.early_stopping.min_delta": (
        "Any improvement counts; training.early_stopping.patience is how many evaluations in a row "
        "may pass without one."
    ),
    "training.fusion_groups": "Gradients are reduced in groups by size.",
    "training.gpu_collective_seconds": "A rank fails if a collective takes longer than an hour.",
    "training.lr_reference_batch_size": (
        "Give the training.learning_rate for the global batch size itself."
    ),
    "training.lr_scaling": "Give the training.learning_rate for the global batch size itself.",
    "training.parallel.micro_batches": "Layers are not divided among ranks.",
    "training.parallel.pipeline": (
        "Layers are not divided among ranks: training.parallel.shard divides the state."
    ),
    "training.parallel.tensor": (
        "Layers are not divided among ranks: training.parallel.shard divides the state."
    ),
    "training.sparse_embeddings": (
        "Ranks exchange the gradient of the embeddings in the form that has fewer bytes."
    ),
    "training.warmup_steps": "training.warmup_ratio is the fraction of the steps with warm-up.",
    "tune.lease_seconds": "A worker counts as dead after 60 seconds without contact.",
    "tune.max_evaluations": (
        "Hyperband takes the evaluations of a full trial from the first full trials."
    ),
    "tune.min_evaluations": "evaluation.every_steps says when a trial can first be pruned.",
    "tune.reduction_factor": "One trial in three continues at each rung.",
    "tune.retries": "A trial that was lost is tried again twice.",
    "tune.seed": "The sampler's seed is fixed; training.seed is that of the trials.",
    "tune.startup_trials": "The first 10 trials have random values.",
    "yarn.driver.vcores": "A job's driver has one vcore.",
    "yarn.environment": (
        "With yarn.python the nodes use that interpreter, without it an archive is shipped to them."
    ),
}
"""{key or section: one sentence that says what stands in its place}, in alphabetical order. The
loader, `--set`, a policy, a study's search space and the Airflow form refuse these keys with it."""


def replacement(path: Sequence[Any]) -> str | None:
    """The sentence of a removed key, or of a removed section that it was in; None for other keys.

    >>> replacement(["no", "such", "key"])
    """
    for count in range(len(path), 0, -1):
        if (sentence := REMOVED.get(".".join(str(part) for part in path[:count]))) is not None:
            return sentence
    return None
