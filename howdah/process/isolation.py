"""Starts Python processes so that they run Howdah's modules and nothing that is named like them.

`python -m MODULE` and `python -c` put the working directory first in sys.path, and PYTHONPATH comes
before the standard library: a `training.py`, an `html.py` or a package `jobs` there would run in
place of ours. All product code starts its processes by `module` or `code`, with `environment`
(tests/process/test_isolation.py looks for other ways).
"""

from __future__ import annotations

import importlib.util
import os
import site
import sys
from collections.abc import Mapping, Sequence

from howdah.errors import ForeignPackages

__all__ = [
    "FOREIGN_REMEDY", "PACKAGES", "SAFE_PATH", "VARIABLE", "VARIABLES", "code", "environment",
    "foreign_packages", "home", "module", "require_own_packages", "restored",
]  # fmt: skip

PACKAGES = (  # of pyproject.toml
    "howdah",
    "etl",
    "training",
    "jobs",
    "serving",
    "places",
    "yarn",
    "tuning",
    "minicluster",
)
"""Howdah's import packages."""
VARIABLE = "HOWDAH_PYTHONPATH"
"""Environment variable with more directories for Howdah's processes to import from, as PYTHONPATH
has them: a PySpark outside of site-packages, a plug-in of fsspec."""
_SAFE_PATH = "PYTHONSAFEPATH"
VARIABLES = ("PYTHONPATH", _SAFE_PATH)
"""What `environment` sets, for launchers that name what they pass on."""
SAFE_PATH = "howdah"
"""Our value of PYTHONSAFEPATH, any text will do: a process of the user's own is started without."""
_REMOVED = ("PYTHONPATH", "PYTHONSTARTUP", "PYTHONINSPECT")
"""PYTHONHOME stays: the interpreter that runs this process may need it."""


FOREIGN_REMEDY = (
    "leave their directory out of PYTHONPATH for howdah (env -u PYTHONPATH howdah ...), or"
    f" uninstall or rename them; {VARIABLE} names what Howdah's processes are to import besides"
)


def module(name: str, *arguments: str, python: str | None = None) -> list[str]:
    """The argument list of `python -m NAME ARGUMENTS`, without the working directory in sys.path.

    Args:
        python: the interpreter, as a shell or a process is to find it; None: this process's.
    """
    return [python or sys.executable, "-P", "-m", name, *arguments]


def code(text: str, *arguments: str, python: str | None = None) -> list[str]:
    """The command `python -c TEXT ARGUMENTS`, isolated like that of `module`."""
    return [python or sys.executable, "-P", "-c", text, *arguments]


def environment(
    base: Mapping[str, str] | None = None, *, first: Sequence[str] = ()
) -> dict[str, str]:
    """The environment of a process of Howdah's own, and of what that starts in turn.

    PYTHONPATH is replaced: it has the directories of HOWDAH_PYTHONPATH, and Howdah's own where the
    interpreter does not find it by itself. PYTHONSAFEPATH keeps the working directory out of
    sys.path in processes that others start: a launcher's ranks, Spark's Python workers.

    Args:
        base: the environment to start from; None: this process's.
        first: directories and archives to import from before all others.
    """
    env = dict(os.environ if base is None else base)
    for name in _REMOVED:
        env.pop(name, None)
    extra = [os.path.abspath(one) for one in env.get(VARIABLE, "").split(os.pathsep) if one]
    ours = [] if home() in _site_directories() else [home()]
    if paths := dict.fromkeys([*first, *extra, *ours]):
        env["PYTHONPATH"] = os.pathsep.join(paths)
    env.setdefault(_SAFE_PATH, SAFE_PATH)
    return env


def restored(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a command of the user's own: its scripts import what lies beside them."""
    env = dict(os.environ if base is None else base)
    if env.get(_SAFE_PATH) == SAFE_PATH:
        del env[_SAFE_PATH]
    return env


def home() -> str:
    """The directory (or the wheel) that this process imports Howdah's packages from."""
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def require_own_packages() -> None:
    """Refuse to go on if another package of the same name would be imported as one of Howdah's.

    Raises:
        ForeignPackages: with each of them, and where it lies.
    """
    foreign = foreign_packages()
    if not foreign:
        return
    names = ", ".join(foreign)
    raise ForeignPackages(
        f"other packages are named like Howdah's: {names}",
        where=", ".join(foreign.values()),
        expected=f"{names} of {home()}",
        got=f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}",
        remedy=FOREIGN_REMEDY,
    )


def foreign_packages() -> dict[str, str]:
    """{name: path} of packages that would be imported in place of Howdah's; nothing is imported.

    A name that nothing answers to is left out: an environment may have a part of the packages.
    """
    foreign = {}
    for name in PACKAGES:
        loaded = sys.modules.get(name)
        spec = loaded.__spec__ if loaded is not None else importlib.util.find_spec(name)
        if spec is None:
            continue
        places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
        expected = (os.path.join(home(), name), os.path.join(home(), name, "__init__.py"))
        if places and os.path.realpath(places[0]) not in map(os.path.realpath, expected):
            foreign[name] = places[0]
    return foreign


def _site_directories() -> list[str]:
    """Where the interpreter looks by itself."""
    user_site = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [*site.getsitepackages(), *user_site]
