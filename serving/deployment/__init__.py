"""Models in the hands of other servers and registries: Ray Serve, MLflow."""
