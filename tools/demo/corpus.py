"""The demo's corpus: docstrings of installed packages with the package as label, as Parquet.

    python -m tools.demo.corpus FILE.parquet [PACKAGE ...]

Files are parsed, never imported. The rows keep the dirt of real data: copies, near copies, markup,
very long texts, and a bounded share of empty ones (functions without a docstring). The demo takes
ROWS of each package, mostly their first paragraphs, so that it ends in minutes.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b, sha256
from itertools import chain

from howdah.errors import DataError, HowdahError, render

PACKAGES = (
    "fontTools", "matplotlib", "networkx", "numpy", "pandas", "pyspark", "scipy", "sklearn",
    "sqlalchemy",
)  # fmt: skip
"""Packages that every environment of the lock file has, and that have many docstrings."""
SKIPPED_DIRECTORIES = frozenset({"tests", "test", "testing", "_vendor", "__pycache__"})
EMPTY_EVERY = 40
"""One in this many functions without a docstring gives a row with an empty text."""
ROWS = 300
"""Rows of each package in the demo."""
WHOLE_EVERY = 20
"""One in this many of the demo's texts is a whole docstring; the others are first paragraphs."""

_DIGEST = b"howdah.demo.digest"

Row = tuple[str, str, str]


def write(path: str, packages: Sequence[str] = PACKAGES, rows: int | None = None) -> bool:
    """Write the corpus to a local Parquet file with the columns id, text and label.

    A file with the same rows is kept, so that a second demo reuses its dataset.

    Args:
        rows: see `corpus`.
    Returns:
        Whether the file was written.
    Raises:
        DataError: a package is not installed, none has a docstring, or the path is another file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    digest = identity(packages, rows)["digest"].encode()
    if os.path.exists(path):
        stored = _digest_of(path)
        if stored is None:
            raise DataError("this existing file is not the demo's corpus", where=path)
        if stored == digest:
            return False
    schema = pa.schema([(name, pa.string()) for name in ("id", "text", "label")])
    columns = [list(column) for column in zip(*corpus(packages, rows), strict=True)]
    if not columns:
        raise DataError("these packages have no docstrings", got=", ".join(packages))
    table = pa.table(columns, schema=schema.with_metadata({_DIGEST: digest}))
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    part = f"{path}.{os.getpid()}.part"
    try:
        # Spark reads row groups in parallel.
        pq.write_table(table, part, row_group_size=len(table) // 8 + 1)
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.remove(part)
    return True


def _digest_of(path: str) -> bytes | None:
    """The digest that `write` has stored in a file; None: another program wrote the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return (pq.read_schema(path).metadata or {}).get(_DIGEST)
    except (pa.ArrowInvalid, OSError):
        return None


def package_files(package: str) -> list[tuple[str, str]]:
    """(path relative to the package, absolute path) of a package's Python files, sorted.

    Raises:
        DataError: the package is not installed or has no Python files.
    """
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"the corpus needs the package {package} (a directory), which is not installed",
            where=f"module {package}",
        )
    files = []
    for root in spec.submodule_search_locations:
        for directory, below, names in os.walk(root):
            below[:] = sorted(d for d in below if d not in SKIPPED_DIRECTORIES)
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(directory, name)
                    files.append((os.path.relpath(path, root).replace(os.sep, "/"), path))
    return sorted(files)


def identity(packages: Sequence[str], rows: int | None = None) -> dict:
    """Sources of the corpus: {packages: {name: {files, bytes}}, digest of all contents and `rows`}.

    The digest does not depend on times and paths: it is the same on all machines with the same
    locked versions.
    """
    digest = sha256(f"{rows}:".encode())
    counts = {}
    for package in packages:
        total = 0
        listed = package_files(package)
        for relative, path in listed:
            with open(path, "rb") as file:
                content = file.read()
            total += len(content)
            digest.update(f"{package}:{relative}:{len(content)}:".encode())
            digest.update(sha256(content).digest())
        counts[package] = {"files": len(listed), "bytes": total}
    return {"packages": counts, "digest": digest.hexdigest()[:32]}


def corpus(packages: Sequence[str], rows: int | None = None) -> Iterator[Row]:
    """Rows (id, text, label) of all packages, in a fixed order.

    An id is `package:relative/path.py:qualified.name`; a name defined again in a file gets `#2`.

    Args:
        rows: most rows of a package, chosen by their ids, most of them cut to their first
            paragraph; None: all rows, whole.
    """
    for package in packages:
        all_rows = chain.from_iterable(
            rows_of_file(package, relative, path) for relative, path in package_files(package)
        )
        if rows is None:
            yield from all_rows
            continue
        for row_id, text, label in sorted(all_rows, key=lambda row: _number(row[0]))[:rows]:
            is_whole = _number(row_id) // EMPTY_EVERY % WHOLE_EVERY == 0
            yield row_id, text if is_whole else _first_paragraph(text), label


def _first_paragraph(text: str) -> str:
    return re.split(r"\n\s*\n", text.lstrip(), maxsplit=1)[0]


def rows_of_file(package: str, relative: str, path: str) -> Iterator[Row]:
    """Rows (id, text, label) of one Python file; none of a file that does not parse."""
    with open(path, "rb") as file:
        source = file.read()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in the packages
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # packages include templates and files for other Python versions
    seen: dict[str, int] = {}
    for name, text in _walk(tree, ""):
        seen[name] = seen.get(name, 0) + 1
        again = f"#{seen[name]}" if seen[name] > 1 else ""
        row_id = f"{package}:{relative}:{name}{again}"
        if text is not None:
            # A lone surrogate in a literal cannot be encoded as UTF-8.
            yield row_id, text.encode("utf-8", "replace").decode("utf-8"), package
        elif _number(row_id) % EMPTY_EVERY == 0:
            yield row_id, "", package


def _walk(node: ast.AST, prefix: str) -> Iterator[tuple[str, str | None]]:
    """(qualified name, docstring or None) of a module and all classes and functions in it."""
    if isinstance(node, ast.Module):
        yield "<module>", ast.get_docstring(node, clean=False)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            name = f"{prefix}{child.name}"
            yield name, ast.get_docstring(child, clean=False)
            yield from _walk(child, f"{name}.")
        elif not isinstance(child, ast.expr):
            yield from _walk(child, prefix)


def _number(row_id: str) -> int:
    return int.from_bytes(blake2b(row_id.encode("utf-8"), digest_size=8).digest(), "little")


def command(write: Callable[[str, Sequence[str], int], bool]) -> int:
    """Run `TARGET [PACKAGE ...]` of the command line; return 0 or the error's exit code.

    Args:
        write: writes ROWS of each package to the target; False if it has the same rows already.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("target")
    parser.add_argument("packages", nargs="*", metavar="PACKAGE", help="default: a built-in list")
    options = parser.parse_args()
    try:
        written = write(options.target, options.packages or PACKAGES, ROWS)
    except HowdahError as error:
        print(f"demo: {render(error)}", file=sys.stderr)
        return error.exit_code
    print(f"{options.target}: {'written' if written else 'unchanged'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(command(write))
