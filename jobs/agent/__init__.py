"""The agent: one in each container, between the driver and one training process."""
