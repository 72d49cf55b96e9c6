"""Training without a framework or a launcher: loops, losses, ranks."""
