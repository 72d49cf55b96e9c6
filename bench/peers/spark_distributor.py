"""DDP on Spark by TorchDistributor, as its guide has it: `... spark_distributor WORLD JOB.json`."""

from __future__ import annotations

import json
import os
import sys


def train(words: dict) -> None:
    """One rank, in a task."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from bench.peers import plain_torch

    dist.init_process_group("gloo")
    plain_torch.train(
        plain_torch.Job(**words),
        dist.get_rank(),
        dist.get_world_size(),
        wrap=lambda net, optimizer: (DistributedDataParallel(net), optimizer),
    )
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks on a session of this machine."""
    from pyspark.ml.torch.distributor import TorchDistributor
    from pyspark.sql import SparkSession

    world = int(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as file:
        words = json.load(file)
    # Spark's tasks take the first python3 of PATH otherwise, which need not have torch.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master(f"local[{world}]")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )
    try:
        TorchDistributor(world, local_mode=False, use_gpu=False).run(train, words)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
