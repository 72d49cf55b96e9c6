"""Fixtures shared by all tests; each topic's fixtures live in tests/fixtures_<topic>.py."""

import importlib.util

pytest_plugins = [
    f"tests.{module}"
    for module in (
        "fixtures_model",
        "fixtures_spark",
        "fixtures_dataset",
        "fixtures_launched",
        "fixtures_cluster",
        "fixtures_etl_yarn",
        "fixtures_spark35",
        "fixtures_storage",
        "fixtures_httpfs",
        "fixtures_airflow",
    )
    if importlib.util.find_spec(f"tests.{module}")
]
