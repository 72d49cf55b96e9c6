"""How often a DAG's tasks are retried, and after which pauses. Imports nothing of Airflow."""

from __future__ import annotations

from datetime import timedelta

__all__ = ["RETRIES", "TRAINING_RETRIES"]

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
