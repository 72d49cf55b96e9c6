"""A rank as a process: its environment, devices, output, stop requests and its end."""
