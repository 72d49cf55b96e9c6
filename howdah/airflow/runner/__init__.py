"""Run a `howdah` command for a task: on this machine, or on an edge node by SSH."""
