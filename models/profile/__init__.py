"""A model's profile: the reference that drift is measured against."""
