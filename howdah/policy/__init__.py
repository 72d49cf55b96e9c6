"""What users may request of a shared installation."""
