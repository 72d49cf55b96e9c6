"""Which room may import which (docs/architecture.md), read from the source itself.

A room is a folder, or a file that stands beside folders. Below one folder its rooms stand on
floors, each above all that it imports: no import runs up, and none runs in a circle.
"""

import ast
import functools
import graphlib
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import howdah
from tests import ROOT

LAYERS = {
    "howdah": (),
    "airflow": ("howdah",),
    "data": ("howdah",),
    "models": ("howdah", "data"),
    "etl": ("howdah", "data", "models"),
    "training": ("howdah", "data", "models"),
    "serving": ("howdah", "data", "models"),
    "jobs": ("howdah", "data", "models", "etl"),
    "yarn": ("howdah", "data", "models", "jobs"),
    "tuning": ("howdah", "data", "models", "training", "serving"),
    "cli": ("howdah", "data", "models", "etl", "training", "serving", "jobs", "yarn", "tuning"),
    "dags": ("howdah", "airflow"),
}
"""Room -> rooms that it may import; imports for type checkers and in functions count. The provider
for Airflow lies in howdah/airflow: a folder `airflow` at the top would hide Airflow itself."""
LARGEST = 0.2
"""Most lines of one room, as a part of all."""
ROOMS = tuple(LAYERS)
BESIDE = ("tests", "tools", "bench")  # what is no product and kept as small
MOST_FILES = 15  # in a folder
TOO_MANY_LINES = 500  # of a Python file
MOST_ROOMS = 25  # below a folder, as one picture shows them
HEAVY = {"tensorflow", "torch", "transformers", "pyspark", "horovod", "airflow", "mlflow",
         "optuna", "ray", "wandb"}  # fmt: skip

EXTRAS = {
    "pyspark": ("etl/", "howdah/spark/", "data/", "jobs/clusters/spark_driver.py",
                "serving/prediction/", "serving/scoring/"),
    "ray": ("jobs/clusters/ray_driver.py", "serving/deployment/"),
    "optuna": ("tuning/",),
    "deepspeed": (),
}  # fmt: skip
"""Packages of an extra, or of a peer alone: who may import them. Everything else works without."""


def sources(room: str) -> list[Path]:
    provider = ROOT / "howdah" / "airflow"
    top = provider if room == "airflow" else ROOT / room
    paths = sorted(top.rglob("*.py"))
    return [path for path in paths if room != "howdah" or provider not in path.parents]


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imports(tree: ast.AST, *, module_level: bool) -> Iterator[str]:
    """Top names that a module imports: anywhere, or outside functions only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]
        elif not (module_level and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            yield from imports(node, module_level=module_level)


def room_of(module: str) -> str:
    """`howdah.training.comm.base` -> `training`; `howdah.storage` -> `howdah`."""
    if module == "howdah.library":  # the roof for notebooks, as the commands are for shells
        return "cli"
    top, _, rest = module.partition(".")
    below = rest.partition(".")[0]
    return below if below in (*howdah.ROOMS, "airflow") else top


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_import_only_what_they_may(room):
    above = {
        f"{name} imports {other}"
        for name, others in import_map(ROOMS, lazily=True, typing=True).items()
        for other in others
        if room_of(name) == room and room_of(other) not in (room, *LAYERS[room])
    }
    assert above == set()


def test_no_room_is_larger_than_a_fifth_of_all():
    lines = {room: sum(len(path.read_text().splitlines()) for path in sources(room))
             for room in ROOMS}  # fmt: skip
    room = max(lines, key=lines.get)
    assert lines[room] <= LARGEST * sum(lines.values()), (room, lines)


def test_every_room_of_the_checkout_is_in_the_wheel():
    """setup.py, which can import nothing, names them again."""
    assert f"ROOMS = {howdah.ROOMS!r}".replace("'", '"') in (ROOT / "setup.py").read_text()
    assert set(ROOMS) - {"howdah", "airflow", "dags"} == set(howdah.ROOMS)


@pytest.mark.parametrize("room", ["howdah", "airflow", "dags"])
def test_the_core_and_the_dags_start_light(room):
    for path in sources(room):
        name = path.relative_to(ROOT).as_posix()
        heavy = HEAVY
        if name.startswith(("dags/", "howdah/airflow/")) and name != "howdah/airflow/__init__.py":
            heavy = HEAVY - {"airflow"} | {"hdfs", "hdfs_native", "paramiko", "requests"}
        used = set(imports(parsed(path), module_level=True)) & heavy
        assert not used, f"{name} imports {used} at module level"


def test_threads_are_made_in_one_place():
    """Where an exception that ends one is reported, and its owner says what follows."""
    for room in ROOMS:
        for path in sources(room):
            if path == ROOT / "howdah" / "core" / "threads.py":
                continue
            for node in ast.walk(parsed(path)):
                made = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Thread")
                assert not made, f"{path}:{node.lineno}: use howdah.core.threads.start"


def test_only_storage_knows_fsspec():
    for room in ROOMS:
        for path in sources(room):
            used = set(imports(parsed(path), module_level=False))
            if path != ROOT / "howdah" / "storage" / "fsspec_backends.py":
                assert "fsspec" not in used, path


@pytest.mark.parametrize("package", EXTRAS)
def test_an_extras_package_is_imported_nowhere_else(package):
    for room in ROOMS:
        for path in sources(room):
            name = path.relative_to(ROOT).as_posix()
            used = set(imports(parsed(path), module_level=False))
            assert package not in used or name.startswith(EXTRAS[package]), name


def module_name(path: Path) -> str:
    """`training/comm/base.py` -> `howdah.training.comm.base`; `__init__.py` is the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[:-1] if parts[-1] == "__init__" else parts
    return ".".join(("howdah", *parts) if parts[0] in howdah.ROOMS else parts)


def imported(
    tree: ast.AST, modules: set[str], *, lazily: bool, typing: bool = False
) -> Iterator[str]:
    """Modules of ours that a module imports: outside functions, or in functions as well.

    Args:
        typing: also those of `if TYPE_CHECKING:`, which are never run.
    """
    for node in ast.iter_child_nodes(tree):
        is_typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if is_typing and not typing:
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not lazily:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inside = f"{node.module}.{alias.name}"
                module = inside if inside in modules else node.module
                if module in modules:
                    yield module
        else:
            yield from imported(node, modules, lazily=lazily, typing=typing)


@functools.cache
def import_map(
    rooms: tuple[str, ...], *, lazily: bool, typing: bool = False
) -> dict[str, set[str]]:
    """Module -> modules of ours that it imports."""
    files = {module_name(path): path for room in rooms for path in sources(room)}
    return {
        name: set(imported(parsed(path), set(files), lazily=lazily, typing=typing)) - {name}
        for name, path in files.items()
    }


def circle(arrows: dict[str, set[str]]) -> list[str] | None:
    """The names along a circle of imports; None: there is none."""
    try:
        graphlib.TopologicalSorter(arrows).prepare()
    except graphlib.CycleError as error:
        return error.args[1]
    return None


def test_no_file_imports_itself_by_way_of_others():
    product = tuple(room for room in ROOMS if room != "dags")
    assert circle(import_map(product, lazily=False, typing=True)) is None
    for room in product:
        imports = import_map((room,), lazily=True)
        lazy_entrance = {name for name in imports if name.startswith("howdah.cli")}
        arrows = {
            name: to - lazy_entrance for name, to in imports.items() if name not in lazy_entrance
        }
        assert circle(arrows) is None


def folders() -> list[str]:
    """Folders of the product that hold rooms, as dotted names."""
    names = {module_name(path) for room in ROOMS if room != "dags" for path in sources(room)}
    return sorted({name.rpartition(".")[0] for name in names if "." in name})


@pytest.mark.parametrize("folder", folders())
def test_no_import_between_rooms_runs_up(folder):
    """The rooms below a folder can be ordered so that each imports only lower ones."""
    inside = folder + "."
    arrows: dict[str, set[str]] = {}
    for name, to in import_map((room_of(folder),), lazily=False).items():
        if name.startswith(inside):
            room = name[len(inside) :].partition(".")[0]
            below = {
                other[len(inside) :].partition(".")[0] for other in to if other.startswith(inside)
            }
            arrows.setdefault(room, set()).update(below - {room})
    assert circle(arrows) is None
    assert len(arrows) <= MOST_ROOMS


def kept_files() -> list[str]:
    """Files of the product, tests, tools and benches that git keeps, relative to the root."""
    argv = ["git", "ls-files", *ROOMS, *BESIDE]
    listed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.splitlines() if (ROOT / name).is_file()]


def test_a_folder_has_at_most_fifteen_files():
    count = Counter(name.rpartition("/")[0] for name in kept_files())
    assert {name: n for name, n in count.items() if n > MOST_FILES} == {}


def test_a_python_file_has_fewer_than_five_hundred_lines():
    count = {
        name: len((ROOT / name).read_bytes().splitlines())
        for name in kept_files()
        if name.endswith(".py")
    }
    assert {name: n for name, n in count.items() if n >= TOO_MANY_LINES} == {}


def test_tensors_of_checkpoints_are_named_in_one_place():
    """What their names begin with is a fact of the format: training/checkpoint/read.py."""
    spelt = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources("training")
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.Constant) and node.value in ("model/", "adam_m/", "adam_v/")
        and path != ROOT / "training" / "checkpoint" / "read.py"
    ]  # fmt: skip
    assert not spelt, "use MODEL, ADAM_M, ADAM_V"
