"""What is checked before anything is asked of YARN."""
