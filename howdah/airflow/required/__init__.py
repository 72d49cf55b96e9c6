"""A check of the installed Airflow, imported first by every module here that imports Airflow.

If Airflow is missing or too old, this import reports that, instead of failing on the first name
that this Airflow lacks. Ruff sorts it before all other imports (pyproject.toml).
"""

from howdah.airflow import require

require()
