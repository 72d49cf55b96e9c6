"""Files of unfinished runs: their owners, their contents, and when they are removed."""
