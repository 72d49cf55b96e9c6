"""Groups of keys of the section `data`, and small sections."""
