"""The switch to the next version of the model, and the drift of live texts."""
