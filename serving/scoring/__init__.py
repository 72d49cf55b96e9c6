"""Scoring partitions of a Hive table into another one (`howdah score`), each once."""
