"""The local cache directory. Standard library only, since set-up uses it too."""

from __future__ import annotations

import os
from collections.abc import Mapping


def cache_root(env: Mapping[str, str] = os.environ) -> str:
    """Absolute path of local caches: HOWDAH_CACHE, else howdah/ in XDG_CACHE_HOME or ~/.cache.

    An XDG_CACHE_HOME that is not absolute is ignored, as its specification demands.
    """
    directory = env.get("HOWDAH_CACHE")
    if directory:
        return os.path.abspath(os.path.expanduser(directory))
    base = env.get("XDG_CACHE_HOME") or ""
    if not os.path.isabs(base):
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "howdah")
