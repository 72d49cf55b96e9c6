"""`howdah predict`: rows of files, lines or a table, on this machine or with Spark."""
