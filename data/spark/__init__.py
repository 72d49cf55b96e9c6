"""Users' files read with Spark, into the same rows as without it."""
