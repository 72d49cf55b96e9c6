"""The demo, on this machine and on a real Hadoop beside it: `make demo`."""
