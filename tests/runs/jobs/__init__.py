"""Jobs as they are submitted, and parts of them without a cluster."""
