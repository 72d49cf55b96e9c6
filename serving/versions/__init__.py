"""Other versions of the model: the next one, and drift of the texts."""
