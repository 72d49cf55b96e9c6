"""Who runs this process, and where."""

from __future__ import annotations

import getpass
import os
import socket


def user() -> str:
    """Whose process this is; a number where the machine has no name for it, as in containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def user_and_host() -> str:
    """`"anna@edge1"`."""
    return f"{user()}@{socket.gethostname()}"
