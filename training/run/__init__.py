"""A run as its loop sees it, and its directory: progress, metrics, logs, run.json."""
