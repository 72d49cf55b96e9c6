"""Whether a path lies below one of a policy's roots: by its text, and with symbolic links resolved.

Storage, Hadoop and Spark parse the same text differently (a scheme in other letters, "%2e", commas
and braces as lists). A text that two of them could resolve differently is refused.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable
from urllib.parse import unquote

from howdah import storage

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.ASCII | re.DOTALL)
_LISTS = ",#{}\\"
"""Separators of lists and patterns in Spark's and Hadoop's settings, but not in storage's paths."""
_DECODINGS = 4
_HDFS_PORT = ":8020"


def shape_problem(path: str) -> str | None:
    """Why a text cannot be checked as a path; None: it can."""
    if not path.strip():
        return "it is empty"
    if path != path.strip() or not path.isprintable():
        return "it begins or ends with blanks, or holds characters that cannot be seen"
    separators = [character for character in _LISTS if character in path]
    if separators:
        return f"it holds {' '.join(separators)}, which separate a list for Spark or Hadoop"
    url = _URL.fullmatch(path)
    if url is None:
        if "://" in path or ":" in path.partition("/")[0]:
            return "it is neither a plain path nor a URL such as hdfs:///x"
        return _steps_problem(path)
    scheme, rest = url.group(1).lower(), url.group(2)
    if storage.scheme(path) != scheme or "://" in rest:
        return "it is not one URL of a storage that Howdah knows"
    if scheme == "file" and not rest.startswith("/"):
        return "a file:// URL names no host: file:///x"
    return _steps_problem(rest)


def _steps_problem(path: str) -> str | None:
    """Whether a path has `..`, plain or percent-encoded once or more."""
    for _ in range(_DECODINGS):
        if ".." in path.split("/"):
            return "it holds '..'"
        decoded = unquote(path)
        if decoded == path:
            return None
        if decoded.count("/") != path.count("/") or not decoded.isprintable():
            return "it hides characters as %XX"
        path = decoded
    return "it hides characters as %XX several times over"


class Roots:
    """A policy's roots, resolved on this machine.

    Args:
        roots: absolute paths, or "*" for anywhere.
        default_authority: returns the authority of fs.defaultFS; called only where it is needed.
        directory: relative paths are relative to it; None: the working directory.
    """

    def __init__(
        self,
        roots: Iterable[str],
        default_authority: Callable[[], str | None],
        directory: str | None = None,
    ) -> None:
        roots = list(roots)
        self._anywhere = "*" in roots
        self._default = default_authority
        self._directory = directory
        named = [root for root in roots if root != "*"]
        self._local = [self._real(root) for root in named if storage.is_local(root)]
        self._remote = [root for root in named if not storage.is_local(root)]

    def problem(self, path: str) -> str | None:
        """Why a path is not allowed; None: it is."""
        shape = shape_problem(path)
        if shape is not None or self._anywhere:
            return shape
        if storage.is_local(path):
            return self._local_problem(path)
        if any(self._below(path, root) for root in self._remote):
            return None
        return "it lies outside the roots"

    # ------------------------------------------------------------------------------- local
    def directory_of(self, path: str) -> str:
        """A plain or file:// path as an absolute one; links are not resolved."""
        if path.lower().startswith("file://"):
            path = path[len("file://") :]
        path = os.path.expanduser(path)
        whole = os.path.abspath(os.path.join(self._directory or os.getcwd(), path))
        return "/" + whole.lstrip("/")  # POSIX keeps two slashes at the beginning

    def _real(self, path: str) -> str:
        return os.path.realpath(self.directory_of(path))

    def _inside(self, real: str) -> bool:
        return any(real == root or real.startswith(root.rstrip("/") + "/") for root in self._local)

    def _local_problem(self, path: str) -> str | None:
        whole = self.directory_of(path)
        if glob.has_magic(whole):  # a pattern: check all that it may match
            parts = whole.split("/")
            first = next(n for n, part in enumerate(parts) if glob.has_magic(part))
            whole = "/".join(parts[:first]) or "/"
        real = os.path.realpath(whole)
        if not self._inside(real):
            resolved = f" ({real})" if real != whole else ""
            return f"it leads out of the roots{resolved}"
        out = self._link_out(real)
        return None if out is None else f"a link below it leads out of the roots ({out})"

    def _link_out(self, top: str) -> str | None:
        """A link below a directory that leads out of the roots; None: no such link."""
        waiting, seen = [top], {top}
        while waiting:
            try:
                entries = list(os.scandir(waiting.pop()))
            except OSError:  # not a directory, or not readable: the command cannot read it either
                continue
            for entry in entries:
                if entry.is_symlink():
                    real = os.path.realpath(entry.path)
                    if not self._inside(real):
                        return entry.path
                elif entry.is_dir(follow_symlinks=False):
                    real = entry.path
                else:
                    continue
                if real not in seen:
                    seen.add(real)
                    waiting.append(real)
        return None

    # ------------------------------------------------------------------------------ remote
    def _below(self, path: str, root: str) -> bool:
        kind, authority, parts = self._split(path)
        root_kind, root_authority, root_parts = self._split(root)
        if kind != root_kind or parts[: len(root_parts)] != root_parts:
            return False
        return authority == root_authority or (
            self._normalised(kind, authority) == self._normalised(kind, root_authority)
        )

    @staticmethod
    def _split(path: str) -> tuple[str, str, list[str]]:
        authority, _, inner = path.partition("://")[2].partition("/")
        return storage.scheme(path), authority, [p for p in inner.split("/") if p not in ("", ".")]

    def _normalised(self, kind: str, authority: str) -> str:
        """The cluster's address in one spelling."""
        if kind not in storage.HDFS_SCHEMES:
            return authority
        authority = (authority or self._default() or "").lower()
        return authority.removesuffix(_HDFS_PORT) if kind == "hdfs" else authority
