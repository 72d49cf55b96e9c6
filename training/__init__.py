"""Training: one rank's process, and what runs before and after it."""

import sys

# `mpirun python -m howdah.training` from a folder of the user's: what lies in it must not be imported in
# place of a Howdah module or of the standard library. sys.argv is ["-m", ...] while Python looks
# for the module to run (sys.argv in Python's documentation); then sys.path begins with the working
# directory, unless `-P` has been given.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    import os

    if os.path.realpath(sys.path[0]) != os.path.dirname(
        os.path.dirname(os.path.realpath(__file__))
    ):
        del sys.path[0]
