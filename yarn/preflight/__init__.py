"""Checks that run before the first request to YARN."""
