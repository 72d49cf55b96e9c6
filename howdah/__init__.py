"""Howdah: from text on Hadoop or on one machine to a trained and served classifier."""

import os as _os
import sys as _sys

__version__ = "0.1.0"
ROOMS = ("cli", "data", "etl", "jobs", "models", "serving", "training", "tuning", "yarn")
"""Packages that lie beside this folder in a checkout, and in it in a wheel (setup.py)."""

_CHECKOUT = _os.path.dirname(_os.path.dirname(_os.path.abspath(__file__)))
if _os.path.isfile(_os.path.join(_CHECKOUT, "setup.py")):
    __path__.append(_CHECKOUT)

# `mpirun python -m howdah.training` from a user's folder: what lies in it must not be imported in
# place of the standard library. sys.argv is ["-m", ...] while Python looks for the module to run;
# sys.path begins with the working directory then, unless `-P` was given.
_FROM_FOLDER = _sys.argv[:1] == ["-m"] and not _sys.flags.safe_path
if _FROM_FOLDER and _os.path.realpath(_sys.path[0]) != _os.path.realpath(_CHECKOUT):
    del _sys.path[0]
