"""The benches, a module each with `main()`: `python -m bench NAME` runs bench/benches/NAME.py."""
