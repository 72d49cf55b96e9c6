"""What the predictions of a split say beyond its metrics: in two passes over their files."""
