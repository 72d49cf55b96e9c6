"""How a command that made a run ends: what the run is worth, and what comes next."""
