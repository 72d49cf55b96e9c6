"""Ray Train's trainer: each of its workers runs a rank of Howdah as a child process.

    python examples/ray_train.py run.yaml

After a lost rank Ray restarts the whole group, and training resumes from its newest checkpoint.
Ray runs on this machine, with its own token; on your cluster use `ray.init("auto")`.
"""

import os
import socket
import subprocess
import sys
import tempfile

import verdict

RANKS, RESTARTS = 2, 1


def train(words: dict) -> None:
    """Run one rank, in a worker; pickled by value."""
    from ray import train
    from ray.train.collective import broadcast_from_rank_zero
    from ray.util import get_node_ip_address

    with socket.socket() as free:
        free.bind((get_node_ip_address(), 0))
        address, port = free.getsockname()
    env = broadcast_from_rank_zero({"MASTER_ADDR": address, "MASTER_PORT": port})
    me = train.get_context()
    env |= {"RANK": me.get_world_rank(), "WORLD_SIZE": me.get_world_size()}
    env |= {"LOCAL_RANK": me.get_local_rank(), "LOCAL_WORLD_SIZE": me.get_local_world_size()}
    command = [sys.executable, "-m", "howdah.training", "--config", words["config"]]
    subprocess.run(command, check=True, env=os.environ | {k: str(v) for k, v in env.items()})


def start(config_path: str, config) -> None:
    """Start Ray, then the ranks in its workers."""
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as place:  # sockets: a short path
        token = os.path.join(place, "token")
        with open(os.open(token, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
            file.write(os.urandom(32).hex())
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": token}  # before the import
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
        import ray
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

        ray.init(num_cpus=RANKS, include_dashboard=False, object_store_memory=100 << 20,
                 _temp_dir=place, _node_ip_address="127.0.0.1")  # fmt: skip
        try:
            again = FailureConfig(max_failures=RESTARTS)
            DataParallelTrainer(
                train,
                train_loop_config={"config": os.path.abspath(config_path)},
                scaling_config=ScalingConfig(num_workers=RANKS),
                run_config=RunConfig(storage_path=f"{place}/results", failure_config=again),
            ).fit()
        finally:
            ray.shutdown()


if __name__ == "__main__":
    sys.exit(verdict.main(start))
