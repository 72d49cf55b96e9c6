"""The directory of a Ray that one command starts for itself: its token, and Ray's own files.

    <root>/            mode 0700, made here: no other user can reach what is below it
      token            mode 0600
      r/               Ray's `_temp_dir`

Ray makes its `_temp_dir` writable for all users (mode 0777, without a sticky bit), so that several
users can share one Ray. It is therefore given a directory below one that it does not know of.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from dataclasses import dataclass

from howdah.errors import ClusterError, PermissionDenied

_LONGEST_PLACE = 28
"""Characters: a socket's path may have 107 (unix(7)). Below it come our directory (12 with its
slash), `/r` and Ray's: session_<time>_<pid>/sockets/plasma_store (64)."""


@dataclass(frozen=True)
class RayHome:
    """A directory made by `make`."""

    root: str

    @property
    def token(self) -> str:
        """File with the random token that guards Ray's ports."""
        return os.path.join(self.root, "token")

    @property
    def temporary(self) -> str:
        """What Ray gets as `_temp_dir`."""
        return os.path.join(self.root, "r")

    @classmethod
    def make(cls) -> RayHome:
        """A new directory with a new token.

        Raises:
            ClusterError: no directory for temporary files has a path that is short enough.
        """
        for place in (tempfile.gettempdir(), "/tmp"):
            if len(place) <= _LONGEST_PLACE and os.access(place, os.W_OK | os.X_OK):
                break
        else:
            raise ClusterError(
                "Ray needs a directory with a short path for its sockets",
                where="TMPDIR",
                expected=f"a writable directory of at most {_LONGEST_PLACE} characters",
                got=tempfile.gettempdir(),
                remedy="set TMPDIR, for example to /var/tmp",
            )
        home = cls(tempfile.mkdtemp(prefix="hd-", dir=place))  # 0700
        os.mkdir(home.temporary, 0o700)
        with open(os.open(home.token, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        return home

    def require_private(self) -> None:
        """Refuse to go on where another user could reach the token: asked once Ray has started.

        Raises:
            PermissionDenied: a mode was changed, or another user owns it.
        """
        for path in (self.root, self.token):
            info = os.lstat(path)
            if stat.S_IMODE(info.st_mode) & 0o077 or info.st_uid != os.geteuid():
                raise PermissionDenied(
                    "other users can reach the token of this command's Ray",
                    where=path,
                    got=f"mode {stat.S_IMODE(info.st_mode):04o}, user {info.st_uid}",
                )
