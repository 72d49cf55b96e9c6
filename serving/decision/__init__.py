"""The decision of an export: temperature, rejection, thresholds of labels."""
