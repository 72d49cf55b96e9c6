"""Groups of tasks that several DAG files share."""
