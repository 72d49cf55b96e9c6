"""Fixtures shared by all tests; each topic's fixtures live in tests/fixtures/<topic>.py."""

import importlib.util

pytest_plugins = [
    f"tests.fixtures.{module}"
    for module in (
        "model",
        "spark",
        "dataset",
        "launched",
        "cluster",
        "etl_yarn",
        "spark35",
        "storage",
        "httpfs",
        "airflow",
    )
    if importlib.util.find_spec(f"tests.fixtures.{module}")
]
