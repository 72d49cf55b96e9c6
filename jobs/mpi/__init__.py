"""Jobs whose ranks mpirun starts: mpirun beside the driver, its daemons in the containers."""
