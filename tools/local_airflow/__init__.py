"""An Airflow on this machine for trials and tests: `make airflow`."""
