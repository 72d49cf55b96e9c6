"""Rows and datasets that are made without Spark."""
