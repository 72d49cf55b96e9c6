"""HTTP between driver, agents and Gloo's clients: bounded, signed, and safe against replay."""
