"""The shared core of Howdah: configuration, storage, records, manifests, the command line."""

__version__ = "0.1.0"
