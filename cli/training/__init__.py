"""What `howdah plan` and `howdah train` say of a run, before it and after it."""
