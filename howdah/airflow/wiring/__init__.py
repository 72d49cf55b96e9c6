"""Parts that several DAG files put together from operators in the same way."""
