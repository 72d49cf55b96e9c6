"""A rank of tests/training/elastic/test_comm.py: joins worlds and sums, by commands on stdin.

The framework is tensorflow, torch, or torch without Horovod, whose ranks meet in a file
(torch.distributed) or in a job's rendezvous (torch.rendezvous).

A line in is {"env": {...}} (join that world), {"sum": x}, {"sum": x, "give_up": seconds} or, in
PyTorch, {"exchange": x}; a line out is {"joined": size}, {"sum": y}, {"exchange": y} or
{"lost": text}.
"""

from __future__ import annotations

import json
import os
import sys
import threading

import numpy as np

from howdah.core.processes import die_with_parent


def main(kind: str) -> None:
    from howdah.process import env

    framework = kind.partition(".")[0]
    die_with_parent()
    env.prepare(framework, threads=1)
    from howdah.training.comm import backends
    from howdah.training.comm.base import RankLost

    if kind == "torch":
        import howdah.training.comm.horovod_torch
    elif framework == "torch":
        import howdah.training.comm.distributed_torch
    else:
        import howdah.training.comm.horovod_tf  # noqa: F401
    if framework == "torch":
        import torch
    print(json.dumps({"ready": os.getpid()}), flush=True)
    comm = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            if "env" in command:
                if comm is not None:
                    comm.shutdown()
                    comm = None
                os.environ.update(command["env"])
                comm = backends.init(framework, limit=float(command["limit"]))
                answer = {"joined": comm.size}
            elif "exchange" in command:  # in the groups of compressed messages
                _, across = comm.levels()
                parts = torch.full((across.size, 1), command["exchange"])
                received = across.begin_exchange(0, parts).wait()
                answer = {"exchange": received.sum().item()}
            else:
                if "give_up" in command:
                    threading.Timer(command["give_up"], comm.give_up).start()
                answer = {"sum": comm.sum(np.array([command["sum"]]))[0]}
        except RankLost as error:
            answer = {"lost": error.got}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
