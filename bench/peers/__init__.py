"""Programs of the peers: the same work done with another library, for a bench to time."""
