"""Checkpoints: what they hold, when they are due, how they are written and read."""
