"""Records of a run: run.json, its identity, settings, hours, metrics."""
