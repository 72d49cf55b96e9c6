"""What is known of a run besides its metrics: which command began it, what it has used."""
