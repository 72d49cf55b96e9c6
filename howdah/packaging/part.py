"""One file of a shipped environment."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO


@dataclass(frozen=True, kw_only=True)
class Part:
    """One file of the environment: its name there, and its source (a path) or its contents."""

    name: str
    path: str | None = None
    contents: bytes | None = None
    executable: bool = False

    def open(self) -> BinaryIO:
        """Its bytes."""
        return open(self.path, "rb") if self.contents is None else io.BytesIO(self.contents)

    def digest(self, of_file: Callable[[str], str]) -> str:
        """SHA-256 of its bytes, in hex.

        Args:
            of_file: returns the SHA-256 of the file at a path.
        """
        if self.contents is None:
            return of_file(self.path)
        return hashlib.sha256(self.contents).hexdigest()

    def is_elf(self) -> bool:
        """True for a program or a library, by its name and its first bytes."""
        if self.path is None or not (self.executable or ".so" in os.path.basename(self.name)):
            return False
        with open(self.path, "rb") as file:
            return file.read(4) == b"\x7fELF"
