"""What is known of a run besides its metrics: which command began it, what it has used."""

RUN_JSON = "run.json"
"""A run's record in its directory: its identity, attempts, metrics and hours. The run itself writes
it (models/runs/run_json.py)."""
REPORT = "report.html"
"""The run's page, beside it (serving/report/report.py)."""
