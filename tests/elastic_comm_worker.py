"""A rank of tests/test_training_elastic_comm.py: joins worlds and sums, as its stdin says.

A line in is {"env": {...}} (join that world), {"sum": x} or {"sum": x, "give_up": seconds}; a line
out is {"joined": size}, {"sum": y} or {"lost": text}.
"""

from __future__ import annotations

import json
import os
import sys
import threading

import numpy as np

from howdah.processes import die_with_parent


def main(framework: str) -> None:
    from training import env

    die_with_parent()
    env.prepare(framework, threads=1)
    from training import comm as comm_module

    if framework == "torch":
        import training.comm_torch
    else:
        import training.comm_tf  # noqa: F401
    print(json.dumps({"ready": os.getpid()}), flush=True)
    comm = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if "env" in asked:
                if comm is not None:
                    comm.shutdown()
                    comm = None
                os.environ.update(asked["env"])
                comm = comm_module.init(framework)
                told = {"joined": comm.size}
            else:
                if "give_up" in asked:
                    threading.Timer(asked["give_up"], comm.give_up).start()
                told = {"sum": comm.sum(np.array([asked["sum"]]))[0]}
        except comm_module.RankLost as error:
            told = {"lost": error.got}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
