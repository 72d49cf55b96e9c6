"""Hadoop without Java: settings, tokens, Kerberos logins, the ResourceManager, an RPC probe."""
