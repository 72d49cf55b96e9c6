"""The machine, its processes and threads, for every room. No storage, no configuration."""
