"""What an ELF file (program, shared library, extension module) asks of the system it is loaded on.

Read from the dynamic section by the program headers, as the loader reads it: works on stripped
files too. 64-bit little-endian alone, which is what x86-64 is.
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass

__all__ = ["Elf", "newest_glibc", "read"]

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_SONAME = 1, 5, 14
_DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
_WEAK = 2  # a version whose absence the loader forgives
_GLIBC = re.compile(r"GLIBC_(\d+(?:\.\d+)+)")


@dataclass(frozen=True)
class Elf:
    """Of one file: libraries that it names, its own name, and versions of their symbols."""

    needed: tuple[str, ...] = ()
    """DT_NEEDED: shared libraries, e.g. libc.so.6."""
    soname: str | None = None
    versions: tuple[str, ...] = ()
    """Symbol versions that the loader insists on, e.g. GLIBC_2.34 or GLIBCXX_3.4.29."""


def read(path: str) -> Elf | None:
    """What the file asks for; None where it is no 64-bit little-endian ELF file, or a broken one.

    Source: System V ABI, chapters 4 and 5; Linux Standard Base, symbol versioning.
    """
    with open(path, "rb") as file:
        if file.read(6) != b"\x7fELF\x02\x01":
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read(data)
            except (struct.error, IndexError, ValueError):
                return None  # cut off, or something else in ELF's clothes


def newest_glibc(versions: tuple[str, ...]) -> tuple[int, ...] | None:
    """The newest glibc among symbol versions, comparable: (2, 34); None: none is glibc's.

    >>> newest_glibc(("GLIBC_2.9", "GLIBC_2.34", "GLIBCXX_3.4.29"))
    (2, 34)
    """
    found = [tuple(map(int, match[1].split("."))) for v in versions if (match := _GLIBC.match(v))]
    if "GLIBC_ABI_DT_RELR" in versions:  # packed relocations: the loader knows them from there on
        found.append((2, 36))
    return max(found, default=None)


def _read(data: mmap.mmap) -> Elf:
    (headers_at,) = struct.unpack_from("<Q", data, 32)
    header_size, count = struct.unpack_from("<HH", data, 54)
    loads: list[tuple[int, int, int]] = []  # virtual address, offset in the file, size there
    dynamic: tuple[int, int] | None = None
    for number in range(count):
        kind, _, offset, address, _, size = struct.unpack_from(
            "<IIQQQQ", data, headers_at + number * header_size
        )
        if kind == _PT_LOAD:
            loads.append((address, offset, size))
        elif kind == _PT_DYNAMIC:
            dynamic = (offset, size)
    if dynamic is None:
        return Elf()  # statically linked

    def place(address: int) -> int:
        for start, offset, size in loads:
            if start <= address < start + size:
                return offset + address - start
        raise ValueError(address)

    tags: dict[int, list[int]] = {}
    for at in range(dynamic[0], dynamic[0] + dynamic[1], 16):
        tag, value = struct.unpack_from("<qQ", data, at)
        if tag == 0:
            break
        tags.setdefault(tag, []).append(value)
    strings = place(tags[_DT_STRTAB][0]) if _DT_STRTAB in tags else 0

    def text(offset: int) -> str:
        start = strings + offset
        return data[start : data.find(b"\0", start)].decode()

    versions: set[str] = set()
    if _DT_VERNEED in tags:
        at = place(tags[_DT_VERNEED][0])
        for _ in range(tags[_DT_VERNEEDNUM][0]):
            _, entries, _, first, following = struct.unpack_from("<HHIII", data, at)
            entry = at + first
            for _ in range(entries):
                _, flags, _, name, more = struct.unpack_from("<IHHII", data, entry)
                if not flags & _WEAK:
                    versions.add(text(name))
                entry += more
            at += following
    return Elf(
        needed=tuple(text(value) for value in tags.get(_DT_NEEDED, ())),
        soname=text(tags[_DT_SONAME][0]) if _DT_SONAME in tags else None,
        versions=tuple(sorted(versions)),
    )
