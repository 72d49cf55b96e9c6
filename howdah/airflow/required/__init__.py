"""Imported first by every module of this package that imports Airflow: checks the Airflow there is.

Where Airflow is missing or too old, the import then says so, instead of failing on the first name
that this Airflow lacks. Ruff sorts it before all other imports (pyproject.toml).
"""

from howdah.airflow import require

require()
