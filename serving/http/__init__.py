"""The server's HTTP: paths, formats, limits of connections and bodies, tokens."""
