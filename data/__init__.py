"""A dataset's format: manifest, shards, records, encoding; and the files of base models."""
