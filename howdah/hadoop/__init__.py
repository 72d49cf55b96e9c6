"""Hadoop without Java: its settings, its tokens, the first words of its RPC."""
