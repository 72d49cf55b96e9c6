"""Drift of a model's inputs and answers from its training data."""
