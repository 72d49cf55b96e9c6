"""`python tests/workers/die_at.py POINT STEP ...`: a rank of training that SIGKILLs itself while it
saves.

POINT is a moment of the checkpoint of STEP; what follows are arguments of
`python -m howdah.training`.
"""

import os
import signal
import sys

from howdah.training.__main__ import main
from howdah.training.checkpoint import manager as checkpoint
from howdah.training.checkpoint import write as checkpoint_write

POINTS = ("mid-write", "before-manifest", "before-rename", "before-prune")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(point: str, step: int) -> None:
    """Put the trap where the checkpoint of `step` comes by."""
    saving = {"step": -1}
    write_files, write_tensors = checkpoint.write_files, checkpoint_write.write_tensors
    write_manifest, rename_dir = checkpoint.write_manifest, checkpoint.storage.rename_dir
    prune = checkpoint.Checkpoints._prune

    def noted(directory, number, *args):
        saving["step"] = number
        return write_files(directory, number, *args)

    def trap(here: str, real):
        def run(*args, **kwargs):
            if point == here and saving["step"] == step:
                if here == "mid-write":
                    args[0].write(b"x" * 1000)
                    args[0].flush()
                die()
            return real(*args, **kwargs)

        return run

    checkpoint.write_files = noted
    checkpoint_write.write_tensors = trap("mid-write", write_tensors)
    checkpoint.write_manifest = trap("before-manifest", write_manifest)
    checkpoint.storage.rename_dir = trap("before-rename", rename_dir)
    checkpoint.Checkpoints._prune = trap("before-prune", prune)


if __name__ == "__main__":
    arm(sys.argv[1], int(sys.argv[2]))
    sys.exit(main(sys.argv[3:]))
