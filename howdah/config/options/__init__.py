"""Groups of keys of the section `data`."""
