"""The loops' only interface to other ranks, and its implementations."""
