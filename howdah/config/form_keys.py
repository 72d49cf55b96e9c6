"""Keys that a form shows first; also the keys that a policy permits by default."""

from __future__ import annotations

OWN = ("job.on", "conn_id", "np", "approval")
"""Fields of the form that are not keys of the configuration, and the cluster."""

OPEN = (
    "run.name", "data.source", "data.format", "data.dataset", "model.base", "training.framework",
    "training.num_train_epochs", "training.max_steps", "training.global_batch_size",
    "training.learning_rate", "job.workers", "gate.minimum", "gate.better_than_published",
    "publish.directory",
)  # fmt: skip
"""Keys that the form shows unfolded."""
