"""What a run has written: run.json, its identity, settings, hours, metrics."""
