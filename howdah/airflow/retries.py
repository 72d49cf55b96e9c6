"""How often a DAG's tasks are retried, after which pauses, and when no try follows. Imports nothing
of Airflow."""

from __future__ import annotations

from datetime import timedelta

ENDED = frozenset({"success", "failed", "skipped", "removed", "upstream_failed"})
"""Airflow's states of a task that no try follows; with None, scheduled... it was cleared: a try
follows."""

RETRIES = {
    "retries": 4,
    "retry_delay": timedelta(minutes=1),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=15),
}
"""`default_args` of a DAG: pauses of 1, 2, 4 and 8 minutes, each up to twice as long (Airflow
spreads them). So the last try begins 15 minutes or more after the first failure: a storage or a
cluster that does not answer for ten minutes fails no DAG run. An error that a retry would repeat is
not retried (howdah/airflow/failures.py)."""

TRAINING_RETRIES = 5
"""Of the training task, whose tries resume from a checkpoint: one more, after 15 minutes."""
