"""Inputs as strangers make them: other people's bytes, files, clients and habits."""
