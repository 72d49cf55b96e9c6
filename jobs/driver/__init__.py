"""The driver: which workers form which world, and what follows when one of them ends."""
