"""Groups of keys, each a section or a part of one."""
