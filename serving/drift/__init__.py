"""Drift: what a model was given and what it answered, beside what it was trained on."""
