"""Other versions of the model: the next one, the challenger; and drift of the texts."""
