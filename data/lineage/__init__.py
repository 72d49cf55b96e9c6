"""Rows in datasets: which versions have one, and which were forgotten."""
