"""`howdah train`: starts the ranks and judges by what they left."""
