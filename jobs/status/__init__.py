"""The files that a driver writes into the run directory for other processes, and the job's page."""
