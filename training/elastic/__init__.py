"""A training process under an agent: the driver's orders, and signs of life."""
