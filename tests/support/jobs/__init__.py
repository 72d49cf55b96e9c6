"""What a job is asked for, and what else speaks to its ports."""
