"""The server behind Ray Serve, and models in MLflow's registry."""
