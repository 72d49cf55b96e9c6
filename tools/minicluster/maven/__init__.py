"""Hadoop's jars: fetched with Maven, held to a committed list of hashes."""
