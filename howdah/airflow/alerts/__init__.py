"""Who is informed when a task has failed for good, or a day's rows have drifted."""
