"""What an ELF file (program, shared library, extension module) needs of the system that loads it.

Read by the program headers, as the loader does: a file may have lost its section headers. Only
64-bit little-endian files, as on x86-64.
"""

from __future__ import annotations

import mmap
import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elftools.elf.dynamic import DynamicSegment
    from elftools.elf.elffile import ELFFile

_WEAK = 2  # VER_FLG_WEAK: the loader ignores the absence of such a version
_GLIBC = re.compile(r"GLIBC_(\d+(?:\.\d+)+)")


@dataclass(frozen=True)
class Elf:
    """One file's name, the libraries that it names, and the versions of their symbols."""

    needed: tuple[str, ...] = ()
    """DT_NEEDED: shared libraries, e.g. libc.so.6."""
    soname: str | None = None
    versions: tuple[str, ...] = ()
    """Symbol versions that the loader requires, e.g. GLIBC_2.34 or GLIBCXX_3.4.29."""


@cache  # milliseconds a file, and the files do not change while they are packed
def read(path: str) -> Elf | None:
    """What the file needs; None: no 64-bit little-endian ELF file, or a broken one."""
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile

    with open(path, "rb") as file:
        try:
            # With a mapped file an offset beyond its end is a ValueError.
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read(ELFFile(data))
        except (ELFError, ValueError, OverflowError, AssertionError):
            return None  # cut off, or not an ELF file behind its magic number


def needs(path: str, library: str) -> bool:
    """True if the file needs a library whose name begins so."""
    elf_file = read(path)
    return elf_file is not None and any(name.startswith(library) for name in elf_file.needed)


def _read(file: ELFFile) -> Elf | None:
    if file.elfclass != 64 or not file.little_endian:
        return None
    dynamic = next(file.iter_segments("PT_DYNAMIC"), None)
    if dynamic is None:
        return Elf()  # statically linked
    return Elf(
        needed=tuple(tag.needed for tag in dynamic.iter_tags("DT_NEEDED")),
        soname=next((tag.soname for tag in dynamic.iter_tags("DT_SONAME")), None),
        versions=tuple(sorted(_versions(dynamic))),
    )


def _versions(dynamic: DynamicSegment) -> set[str]:
    """Source: Linux Standard Base, symbol versioning: DT_VERNEED."""
    from elftools.common.utils import parse_cstring_from_stream, struct_parse

    file, structs = dynamic.elffile.stream, dynamic.elffile.structs
    _, entry_at = dynamic.get_table_offset("DT_VERNEED")
    _, strings_at = dynamic.get_table_offset("DT_STRTAB")
    needed: set[str] = set()
    if entry_at is None or strings_at is None:
        return needed
    for _ in range(sum(tag["d_val"] for tag in dynamic.iter_tags("DT_VERNEEDNUM"))):
        entry = struct_parse(structs.Elf_Verneed, file, entry_at)
        version_at = entry_at + entry["vn_aux"]
        for _ in range(entry["vn_cnt"]):
            version = struct_parse(structs.Elf_Vernaux, file, version_at)
            if not version["vna_flags"] & _WEAK:
                name = parse_cstring_from_stream(file, strings_at + version["vna_name"])
                needed.add(name.decode())
            version_at += version["vna_next"]
        entry_at += entry["vn_next"]
    return needed


def newest_glibc(versions: tuple[str, ...]) -> tuple[int, ...] | None:
    """The newest glibc among symbol versions, comparable: (2, 34); None: none is glibc's.

    >>> newest_glibc(("GLIBC_2.9", "GLIBC_2.34", "GLIBCXX_3.4.29"))
    (2, 34)
    """
    glibc = [tuple(map(int, match[1].split("."))) for v in versions if (match := _GLIBC.match(v))]
    if "GLIBC_ABI_DT_RELR" in versions:  # packed relocations, which the loader knows since 2.36
        glibc.append((2, 36))
    return max(glibc, default=None)
