"""Daemons, users and secrets of the mini cluster."""
