"""The driver decides which workers form a world, and what happens when one of them ends."""
