"""Notifications of tasks that have failed for good, and of a day's drift."""
