"""HTTP between driver, agents and Gloo's clients: bounded, signed, each message counted once."""
