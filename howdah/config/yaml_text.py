"""YAML as Howdah reads and writes it: what cannot be read is an error that names the line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

import yaml

from howdah import storage
from howdah.errors import ConfigError, UsageError
from howdah.faults import typed

_MOST_NODES = 100_000
_TAG = "tag:yaml.org,2002:"
_UNREADABLE = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError)
"""What PyYAML raises besides its own errors, where a text only looks like a date or a number."""
_QUOTES = "fix that line; a text with ': ' or '#' in it needs quotes"
_RECODE = "save it as UTF-8: iconv -f {} -t UTF-8 OLD > NEW"


class _Refused(yaml.constructor.ConstructorError):
    """What is wrong with a node, and what its writer can do."""

    def __init__(self, problem: str, node: yaml.Node, remedy: str = _QUOTES) -> None:
        super().__init__(None, None, problem, node.start_mark)
        self.remedy = remedy


class _Loader(yaml.SafeLoader):
    """Makes a key that is given twice an error: YAML would take the last one. A key is a text:
    YAML 1.1 reads `on:` (job.on) as true."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._checked: set[yaml.Node] = set()
        self._written = 0

    def get_single_node(self) -> Any:
        """The document, if its aliases do not stand for more than a configuration can hold."""
        node = super().get_single_node()
        if node is not None:
            self._check_size(node, {}, set())
        return node

    def _check_size(self, node: yaml.Node, sizes: dict[yaml.Node, int], within: set) -> int:
        """How many nodes a node stands for. An alias costs its writer 3 bytes, and every reader of
        the values all that it stands for: nine lines of nine aliases each are 10^9 values."""
        if isinstance(node, yaml.ScalarNode):
            return 1
        if node in within:
            raise _Refused("an alias refers to a node that contains it", node, "write it out")
        if node in sizes:
            return sizes[node]
        within.add(node)
        is_mapping = isinstance(node, yaml.MappingNode)
        below = [one for pair in node.value for one in pair] if is_mapping else node.value
        self._written += 1 + len(below)
        size = 1 + sum(self._check_size(one, sizes, within) for one in below)
        within.remove(node)
        sizes[node] = size
        if size > _MOST_NODES and size > 10 * self._written:
            raise _Refused(
                f"aliases (*name) stand for more than {_MOST_NODES:,} values",
                node,
                "write them out",
            )
        return size

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        # Keys are checked as they are written: here `<<` stands for the keys that it brings, which
        # a written one may override. A mapping that is merged elsewhere comes here more than once.
        if node not in self._checked:
            self._checked.add(node)
            self._check_keys(node)
        super().flatten_mapping(node)

    def _check_keys(self, node: yaml.MappingNode) -> None:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _Refused(
                    "a key is itself a mapping or a list",
                    key_node,
                    "put quotes around a text that begins with a bracket; a template's {{ ... }}"
                    " has to be filled in before Howdah reads it",
                )
            if key_node.tag in (_TAG + "bool", _TAG + "value"):
                key_node.tag = _TAG + "str"
            merge = key_node.tag == _TAG + "merge"
            key = key_node.value if merge else self.construct_object(key_node)
            if key in seen:
                more = "; several mappings are merged as <<: [*a, *b]" if merge else ""
                raise _Refused(
                    f"key {key!r} is given twice (first on line {seen[key]})",
                    key_node,
                    f"leave one of them out{more}",
                )
            seen[key] = key_node.start_mark.line + 1

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except _UNREADABLE:
            kind = node.tag.removeprefix(_TAG)
            raise _Refused(
                f"a value cannot be read as YAML's {kind}", node,
                "correct it, or put quotes around it if it is a text",
            ) from None  # fmt: skip


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads back: no anchors, and quotes around "1e5"."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# YAML 1.1 reads 5e-5 as a string; users mean the number.
for _either in (_Loader, _Dumper):
    _either.add_implicit_resolver(
        _TAG + "float",
        re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?[eE][-+]?\d+$"),
        list("-+0123456789"),
    )


def dump(value: Any) -> str:
    """Plain values as YAML that `parse` reads back the same."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def read(path: str, what: str = "the configuration") -> Any:
    """The value of the YAML in `path` (any storage); "-" is stdin.

    Args:
        what: what the text is, for messages.
    Raises:
        ConfigError: it is not UTF-8, or not YAML. NotFound: no such file. UsageError: no stdin.
    """
    raw = _stdin() if path == "-" else storage.read_bytes(path)
    where = "stdin" if path == "-" else path
    if isinstance(raw, str):
        return parse(raw, where, what)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        wide = raw.startswith((b"\xff\xfe", b"\xfe\xff"))
        raise ConfigError(
            f"{what} is not UTF-8",
            where=f"{where}, byte {error.start}",
            expected="UTF-8 text",
            got="UTF-16" if wide else None,
            remedy=_RECODE.format("UTF-16" if wide else "ISO-8859-1 (or what it was saved as)"),
        ) from None
    return parse(text, where, what)


def _stdin() -> bytes | str:
    """All of stdin; as text where a caller of the library has put a stream of text there."""
    if sys.stdin is None or sys.stdin.closed:
        raise UsageError("stdin is closed", expected="YAML on it", remedy="name a file instead")
    with typed("stdin", "read"):
        return getattr(sys.stdin, "buffer", sys.stdin).read()


def parse(text: str, where: str, what: str = "the configuration") -> Any:
    """The value of a YAML text.

    Args:
        where: where the text is from, and `what` it is, for messages.
    Raises:
        ConfigError: it is not YAML.
    """
    loader = None
    try:
        loader = _Loader(text)
        return loader.get_single_data()
    except yaml.reader.ReaderError as error:
        # A character that YAML does not allow: NUL where UTF-16 has no mark at its beginning.
        line, wide = text.count("\n", 0, error.position) + 1, error.character == 0
        got = f"the character U+{error.character:04X}"
        remedy = _RECODE.format("UTF-16LE") if wide else "remove that character"
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else None
        got = str(getattr(error, "problem", None) or error)
        remedy = getattr(error, "remedy", _QUOTES)
    except RecursionError:
        line, got = None, "brackets or lists within each other, too many for Python's stack"
        remedy = "take out brackets; a text that begins with one needs quotes"
    except _UNREADABLE:  # in the scanner: "\UFFFFFFFF" is no character
        line = loader.get_mark().line + 1 if loader else None
        got, remedy = "a number or an escape that is out of range", _QUOTES
    finally:
        if loader is not None:
            loader.dispose()
    raise ConfigError(
        f"{what} is not YAML",
        where=where if line is None else f"{where}, line {line}",
        got=got,
        remedy=remedy,
    )


def flow(sections: Mapping[str, Any]) -> str:
    """Sections as one line of YAML to paste, with the values in quotes that need them.

    >>> flow({"data": {"csv": {"delimiter": ";", "encoding": "windows-1252"}}})
    'data: {csv: {delimiter: ";", encoding: windows-1252}}'
    """
    return ", ".join(f"{_flow(key)}: {_flow(value)}" for key, value in sections.items())


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + flow(value) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str) and _PLAIN.fullmatch(value) and parse(value, "") == value:
        return value
    return quoted(value)


def quoted(value: Any) -> str:
    """A text (or another value without parts) as JSON that YAML reads alike."""
    text = json.dumps(value, ensure_ascii=False)
    return _NOT_IN_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


_PLAIN = re.compile(r"[A-Za-z_/][\w./ -]*(?<! )")
_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
"""Characters of JSON's strings that YAML does not allow, or takes for line breaks: those of other
people's labels and columns, and the bytes of a file's name that is not UTF-8."""
