"""PyTorch on Spark: each rank is a task of a barrier stage, started by TorchDistributor.

    python examples/torch_distributor.py run.yaml

`data.spark` configures Spark. The example passes a function, since TorchDistributor drops the exit
code of a file. It tells each rank that it is alone on its node: set training.threads_per_rank.
"""

import sys

import verdict

RANKS = 2


def train(config_path: str) -> None:
    """Run one rank, in the task; pickled by value."""
    from howdah.training.__main__ import main

    if code := main(["--config", config_path]):
        raise RuntimeError(f"training ended with {code}")


def start(config_path: str, config) -> None:
    """Start the ranks on the tasks of a Spark session."""
    from pyspark.ml.torch.distributor import TorchDistributor

    from howdah.spark.session import session

    with session(config.data.spark, name="howdah train"):
        TorchDistributor(RANKS, local_mode=False, use_gpu=False).run(train, config_path)


if __name__ == "__main__":
    sys.exit(verdict.main(start))
