"""A training job on any cluster: its driver, its agents, and the protocol between them."""
