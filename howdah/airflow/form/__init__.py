"""The trigger form: the schema of the configuration model as fields."""
