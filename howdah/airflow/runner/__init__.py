"""Runners of `howdah` commands for tasks: on this machine, or on an edge node by SSH."""
