"""machine, processes, threads, errors."""
