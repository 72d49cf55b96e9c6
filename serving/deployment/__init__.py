"""Models in third-party servers and registries: Ray Serve, MLflow."""
