"""Ranks and hosts that are joined by hand."""
