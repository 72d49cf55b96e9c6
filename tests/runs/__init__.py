"""Real runs and jobs that tests start, and looks at what they left."""
