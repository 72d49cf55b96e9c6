"""What a user does first: write a configuration from a file, and check it on this machine."""
