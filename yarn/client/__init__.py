"""What is asked of a job on YARN from outside: its status, logs, stop and size."""
