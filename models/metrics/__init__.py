"""Metrics of predictions: one label, any number of labels, numbers."""
