"""Starts Python processes so that they run Howdah's modules and nothing that is named like them.

`python -m MODULE` and `python -c` put the working directory first in sys.path, and PYTHONPATH comes
before the standard library: an `html.py` or a package `howdah` there would run in place of Python's
or ours. All product code starts its processes by `module` or `code`, with `environment`
(tests/core/test_isolation.py looks for other ways).
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping, Sequence

import howdah

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


def module(name: str, *arguments: str, python: str | None = None) -> list[str]:
    """The argument list of `python -m NAME ARGUMENTS`, without the working directory in sys.path.

    Args:
        python: the interpreter, as a shell or a process is to find it; None: this process's.
    """
    return [python or sys.executable, "-P", "-m", name, *arguments]


def code(text: str, *arguments: str) -> list[str]:
    """The argument list of `python -c TEXT ARGUMENTS`, isolated like that of `module`."""
    return [sys.executable, "-P", "-c", text, *arguments]


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
    return os.path.dirname(os.path.dirname(os.path.abspath(howdah.__file__)))


def _site_directories() -> list[str]:
    """Where the interpreter looks by itself."""
    user_site = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [*site.getsitepackages(), *user_site]
