"""Which room may import which (docs/architecture.md), read from the source itself."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("howdah", "etl", "training", "yarn", "dags")
MAY_IMPORT = {
    "howdah": {"howdah"},
    "etl": {"howdah", "etl"},
    "training": {"howdah", "training"},
    "yarn": {"howdah", "yarn"},
    "dags": {"howdah"},
}
COMPOSITION_ROOT = "howdah/cli/"  # howdah/airflow/ is one too, and starts commands instead
HEAVY = {"tensorflow", "torch", "transformers", "pyspark", "horovod", "airflow", "mlflow"}


def sources(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def imports(tree: ast.AST, *, module_level: bool) -> Iterator[str]:
    """Top names that a module imports: anywhere, or outside functions only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]
        elif not (module_level and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield from imports(node, module_level=module_level)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_what_they_may(room):
    for path in sources(room):
        name = path.relative_to(ROOT).as_posix()
        lazily = name.startswith(COMPOSITION_ROOT)
        used = set(imports(ast.parse(path.read_text()), module_level=lazily)) & set(ROOMS)
        assert used <= MAY_IMPORT[room], f"{name} imports {used - MAY_IMPORT[room]}"


@pytest.mark.parametrize("room", ["howdah", "dags"])
def test_the_core_and_the_dags_start_light(room):
    for path in sources(room):
        name = path.relative_to(ROOT).as_posix()
        heavy = HEAVY
        if name.startswith(("dags/", "howdah/airflow/")) and name != "howdah/airflow/__init__.py":
            heavy = HEAVY - {"airflow"} | {"hdfs", "hdfs_native", "paramiko", "requests"}
        used = set(imports(ast.parse(path.read_text()), module_level=True)) & heavy
        assert not used, f"{name} imports {used} at module level"


def test_only_storage_knows_fsspec():
    for room in ROOMS:
        for path in sources(room):
            used = set(imports(ast.parse(path.read_text()), module_level=False))
            if path != ROOT / "howdah" / "storage" / "fsspec_backends.py":
                assert "fsspec" not in used, path
