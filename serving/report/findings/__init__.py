"""Findings in the predictions of a split beyond its metrics, by two passes over their files."""
