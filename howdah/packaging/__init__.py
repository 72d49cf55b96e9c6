"""Howdah's wheel and Python environments that travel to a cluster's nodes."""
