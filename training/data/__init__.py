"""From a dataset's shards to batches: which rows, where their bytes are, fetched ahead."""
