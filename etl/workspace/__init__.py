"""Files of unfinished runs: who owns them, what they hold, when they go."""
