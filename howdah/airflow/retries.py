"""Number and pauses of a DAG's retries, and the states that end them. Does not import Airflow."""

from __future__ import annotations

from datetime import timedelta

ENDED = frozenset({"success", "failed", "skipped", "removed", "upstream_failed"})
"""Airflow's final states of a task. In any other state, also after a clear, another try follows."""

RETRIES = {
    "retries": 4,
    "retry_delay": timedelta(minutes=1),
    "retry_exponential_backoff": 2.0,
    "max_retry_delay": timedelta(minutes=15),
}
"""`default_args` of a DAG: pauses of 1, 2, 4 and 8 minutes, each up to twice as long (Airflow adds
jitter). The last try begins at least 15 minutes after the first failure, so a storage or cluster
that does not answer for ten minutes does not fail the DAG run. An error that a retry would repeat
is not retried (howdah/airflow/failures.py)."""

TRAINING_RETRIES = 5
"""Retries of the training task, which resume from a checkpoint: one more, after 15 minutes."""
