"""`howdah train` with one rank: starts its process, and judges by what it left."""
