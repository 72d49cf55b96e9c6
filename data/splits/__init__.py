"""The rows of a dataset version's splits: shards on local disk, and the plan of batches."""
