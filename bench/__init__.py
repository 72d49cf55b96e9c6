"""Benchmarks, each beside its peer in the same run; `python -m bench NAME...` or `make bench`."""
