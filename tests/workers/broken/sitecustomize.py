"""A broken GPU below real training processes: on the path of their interpreter, it is run first.

BROKEN=node:batches    on that node (stand_in_cluster.py: nodes/<node>) every process fails in its
                       batch of that number, as torch does when a GPU's memory is damaged
"""

import os

if "HOWDAH_LINK_FD" in os.environ and "BROKEN" in os.environ:
    from howdah.training.preparation.job import TrainingJob

    node, number = os.environ["BROKEN"].split(":")
    train_source = TrainingJob.train_source

    class Broken:
        """A source of batches whose GPU breaks."""

        def __init__(self, source):
            self._source = source

        def __getattr__(self, name):
            return getattr(self._source, name)

        def __iter__(self):
            for count, batch in enumerate(self._source, 1):
                if count == int(number):
                    raise RuntimeError(
                        "CUDA error: uncorrectable ECC error encountered\nCompile with"
                        " `TORCH_USE_CUDA_DSA` to enable device-side assertions."
                    )
                yield batch

    def broken_source(self, comm, start):
        source = train_source(self, comm, start)
        return Broken(source) if f"/nodes/{node}/" in os.getcwd() else source

    TrainingJob.train_source = broken_source
