"""The demo's corpus: the docstrings of installed packages, labelled with their package, as Parquet.

    python -m tools.demo.corpus FILE.parquet [PACKAGE ...]

Files are parsed, never imported. The rows keep the dirt of real data: copies, near copies, markup,
very long texts, and a bounded share of empty ones (functions without a docstring).
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b, sha256

from howdah.errors import DataError, HowdahError, render

PACKAGES = (
    "airflow", "matplotlib", "networkx", "numpy", "pandas", "pyspark", "scipy", "sklearn",
    "sqlalchemy",
)  # fmt: skip
"""Every environment of the lock file has them, they are well documented, and they parse in seconds.
The package is the label."""
SKIPPED_DIRECTORIES = frozenset({"tests", "test", "testing", "_vendor", "__pycache__"})
EMPTY_EVERY = 40
"""One of so many functions without a docstring gives a row with an empty text."""

_DIGEST = b"howdah.demo.digest"

Row = tuple[str, str, str]


def write(path: str, packages: Sequence[str] = PACKAGES) -> bool:
    """Write the corpus to a local Parquet file with the columns id, text and label.

    A file that holds the very same rows is left as it is, so that a second demo finds its dataset.

    Returns:
        Whether it was written.
    Raises:
        DataError: a package is not installed, or another file is there.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    digest = identity(packages)["digest"].encode()
    if os.path.exists(path):
        found = _digest_of(path)
        if found is None:
            raise DataError(
                "a file is there that is no corpus of the demo's",
                where=path,
                remedy="give another file, or remove that one",
            )
        if found == digest:
            return False
    schema = pa.schema([(name, pa.string()) for name in ("id", "text", "label")])
    columns = [list(column) for column in zip(*corpus(packages), strict=True)]
    table = pa.table(columns, schema=schema.with_metadata({_DIGEST: digest}))
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    part = f"{path}.{os.getpid()}.part"
    try:
        # Several row groups: Spark reads them side by side.
        pq.write_table(table, part, row_group_size=len(table) // 8 + 1)
        os.replace(part, path)
    finally:
        if os.path.exists(part):
            os.remove(part)
    return True


def _digest_of(path: str) -> bytes | None:
    """What `write` has noted in a file; None: it is none of its files."""
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
            f"the corpus needs the package {package}, which is not installed",
            where=f"module {package}",
            expected="an installed package (a directory with Python files)",
            remedy="install it, or name other packages",
        )
    found = []
    for root in spec.submodule_search_locations:
        for directory, below, names in os.walk(root):
            below[:] = sorted(d for d in below if d not in SKIPPED_DIRECTORIES)
            for name in names:
                if name.endswith(".py"):
                    path = os.path.join(directory, name)
                    found.append((os.path.relpath(path, root).replace(os.sep, "/"), path))
    return sorted(found)


def identity(packages: Sequence[str]) -> dict:
    """What the corpus is made of: {packages: {name: {files, bytes}}, digest of all contents}.

    The digest knows no time and no place: two machines with the same locked versions agree.
    """
    digest = sha256()
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


def corpus(packages: Sequence[str]) -> Iterator[Row]:
    """Rows (id, text, label) of all packages, in a fixed order.

    An id is `package:relative/path.py:qualified.name`; a name defined again in a file gets `#2`.
    """
    for package in packages:
        for relative, path in package_files(package):
            yield from rows_of_file(package, relative, path)


def rows_of_file(package: str, relative: str, path: str) -> Iterator[Row]:
    """Rows (id, text, label) of one Python file; none of a file that does not parse."""
    with open(path, "rb") as file:
        source = file.read()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes are their authors' affair
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return  # templates and files of other Python versions lie among the packages'
    seen: dict[str, int] = {}
    for name, text in _walk(tree, ""):
        seen[name] = seen.get(name, 0) + 1
        again = f"#{seen[name]}" if seen[name] > 1 else ""
        row_id = f"{package}:{relative}:{name}{again}"
        if text is not None:
            # a lone surrogate in a literal has no UTF-8 form, and no other tool would show it
            yield row_id, text.encode("utf-8", "replace").decode("utf-8"), package
        elif _chosen(row_id):
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


def _chosen(row_id: str) -> bool:
    number = int.from_bytes(blake2b(row_id.encode("utf-8"), digest_size=8).digest(), "little")
    return number % EMPTY_EVERY == 0


def command(write: Callable[[str, Sequence[str]], bool]) -> int:
    """Run `TARGET [PACKAGE ...]` of the command line; the exit code: 0, or the error's.

    Args:
        write: writes the packages' corpus to the target; False if the same rows were there.
    """
    target, packages = sys.argv[1], sys.argv[2:] or PACKAGES
    try:
        written = write(target, packages)
    except HowdahError as error:
        print(f"demo: {render(error)}", file=sys.stderr)
        return error.exit_code
    print(f"{target}: {'written' if written else 'unchanged'}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(command(write))
