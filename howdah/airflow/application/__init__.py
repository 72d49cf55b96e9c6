"""A task's application on YARN: how it is found, owned, watched and killed."""
