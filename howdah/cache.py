"""Where Howdah keeps what it fetched or built. Standard library only: set-up asks it as well."""

from __future__ import annotations

import os
from collections.abc import Mapping


def cache_root(env: Mapping[str, str] = os.environ) -> str:
    """Absolute path of local caches: HOWDAH_CACHE, else howdah/ in XDG_CACHE_HOME or ~/.cache.

    An XDG_CACHE_HOME that is no absolute path is not heeded, as its specification has it.
    """
    own = env.get("HOWDAH_CACHE")
    if own:
        return os.path.abspath(os.path.expanduser(own))
    base = env.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "howdah")
