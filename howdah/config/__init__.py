"""The run configuration: its sections as pydantic models, and how it is loaded."""
