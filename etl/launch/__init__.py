"""Where the ETL's driver runs: here, under a cluster's PySpark, or in a container."""
