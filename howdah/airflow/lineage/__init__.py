"""What a task reads and writes, for OpenLineage: names by its specification, facets."""
