"""Names of the files that describe a run, or several, in their directory."""

RUN_JSON = "run.json"
"""A run's record in its directory: its identity, attempts, metrics and hours. The run itself writes
it (models/runs/run_json.py)."""
REPORT = "report.html"
"""The run's page, beside it (serving/report/report.py)."""
RUNS = "runs.html"
"""The list of the runs below a directory, in it (serving/report/runs.py)."""
COMPARISON = "comparison.html"
"""A page with some runs side by side (serving/report/comparison.py)."""
