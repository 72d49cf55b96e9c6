"""What Airflow's tests look at and talk to: pages, an edge node, guarded commands."""
