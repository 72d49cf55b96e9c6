"""Tests, in folders named for the rooms that they test."""

from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
"""The repository's root."""
