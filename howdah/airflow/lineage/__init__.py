"""Inputs and outputs of tasks for OpenLineage: names by its specification, and facets."""
