"""What a driver writes into the run directory for others, and the job's page."""
