"""Published models: the gate, versions, the pointer to the current one."""
