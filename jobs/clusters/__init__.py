"""Training jobs on clusters other than YARN: this machine, Spark, Ray."""
