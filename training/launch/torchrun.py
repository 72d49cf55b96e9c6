"""`python -m howdah.training.launch.torchrun SECONDS ...`: on one machine, no open port.

Three things differ from torchrun itself:

- When one rank has ended, torchrun sends the others SIGTERM and, 30 s later, SIGKILL: its
  --shutdown-timeout counts for signals that torchrun itself gets, not for this. Rank 0 may need
  longer to save the last step: here both are SECONDS.
- torchrun and its ranks meet in a TCPStore, which listens on all interfaces, and any process that
  reaches it may read and write it. Here they meet in files that only this user can read.
- Its log directory is removed in the end.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence

from howdah.process.env import STORE


def main(seconds: int, arguments: Sequence[str]) -> None:
    """Run torchrun; ends the process as torchrun does.

    Args:
        seconds: between SIGTERM and SIGKILL for ranks that are to end.
        arguments: torchrun's.
    """
    above = os.path.dirname(os.environ[STORE]) if STORE in os.environ else None
    with tempfile.TemporaryDirectory(prefix="torchrun-", dir=above) as scratch:  # 0700
        os.environ[STORE] = os.path.join(scratch, "ranks")
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        # Each rank sets its own (howdah/process/env.py); torchrun warns where there is none.
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        from torch.distributed import run
        from torch.distributed.elastic.multiprocessing import PContext

        close = PContext.close
        PContext.close = lambda self, death_sig=None, timeout=None: close(self, death_sig, seconds)
        rendezvous = ["--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file"]
        rendezvous += ["--rdzv-endpoint", os.path.join(scratch, "launcher")]
        rendezvous += ["--local-addr", "127.0.0.1", "--log-dir", os.path.join(scratch, "logs")]
        run.main([*rendezvous, *arguments])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
