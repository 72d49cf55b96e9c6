"""The gate, published versions and their lineage."""
