"""Horovod on Spark, either framework: each rank is a process beside a task, by horovod.spark.run.

    python examples/horovod_spark.py run.yaml

`data.spark` configures Spark. Horovod sends the function by cloudpickle and signs its messages; its
services listen on every interface, so the network must be trusted.
"""

import os
import sys

import verdict

RANKS = 2


def train(config_path: str) -> None:
    """Run one rank, beside the task; pickled by value."""
    from howdah.training.__main__ import main

    if code := main(["--config", config_path]):
        raise RuntimeError(f"training ended with {code}")


def start(config_path: str, config) -> None:
    """Start the ranks beside the tasks of a Spark session."""
    import horovod.spark

    from howdah.spark.session import session

    with session(config.data.spark, name="howdah train"):
        words = [config_path]
        horovod.spark.run(train, words, num_proc=RANKS, use_gloo=True, env=dict(os.environ))


if __name__ == "__main__":
    sys.exit(verdict.main(start))
