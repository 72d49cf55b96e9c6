"""Training: one rank's process, and what runs before and after it."""
