"""Howdah's core: configuration, storage, records, manifests, models, the command line, Airflow."""

__version__ = "0.1.0"
