"""The lessons of examples/lessons: runs them, and makes one page of what they show."""
