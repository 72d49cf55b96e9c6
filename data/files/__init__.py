"""Files of rows: which files there are, and what each says of its columns, without Spark."""
