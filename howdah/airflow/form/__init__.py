"""The trigger form: the configuration model's own schema as fields."""
