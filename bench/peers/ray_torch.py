"""DDP by Ray Train's TorchTrainer, as its guide has it: `... ray_torch WORLD JOB.json`.

A checkpoint every `save_every` steps; one failure is recovered from.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile


def loop(words: dict) -> None:
    """One rank, in a worker."""
    import torch
    from ray import train
    from ray.train.torch import prepare_model

    from bench.peers import plain_torch

    job, here, state = plain_torch.Job(**words), train.get_context(), {}
    if checkpoint := train.get_checkpoint():
        with checkpoint.as_directory() as place:
            state = torch.load(f"{place}/state.pt")
    inside = {}

    def wrap(net, optimizer):
        if state:
            net.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        inside.update(net=net, optimizer=optimizer)
        return prepare_model(net), optimizer

    def after(step: int) -> None:
        if step % job.save_every:
            return
        with tempfile.TemporaryDirectory() as place:
            kept = None
            if here.get_world_rank() == 0:
                model, optimizer = (inside[key].state_dict() for key in ("net", "optimizer"))
                values = {"model": model, "optimizer": optimizer, "step": step}
                torch.save(values, f"{place}/state.pt")
                kept = train.Checkpoint.from_directory(place)
            train.report({"step": step}, checkpoint=kept)

    plain_torch.train(
        job, here.get_world_rank(), here.get_world_size(), wrap=wrap, after=after,
        first=state.get("step", 0),
    )  # fmt: skip


def main() -> None:
    """Start Ray, and the ranks in its workers."""
    world = int(sys.argv[1])
    with open(sys.argv[2], encoding="utf-8") as file:
        words = json.load(file)
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as place:  # sockets: a short path
        with open(f"{place}/token", "w", encoding="utf-8") as file:
            file.write(os.urandom(32).hex())
        os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": f"{place}/token"}
        import ray
        from ray import train
        from ray.train.torch import TorchTrainer

        ray.init(num_cpus=world, include_dashboard=False, object_store_memory=100 << 20,
                 _temp_dir=place, _node_ip_address="127.0.0.1")  # fmt: skip
        try:
            TorchTrainer(
                loop,
                train_loop_config=words,
                scaling_config=train.ScalingConfig(num_workers=world),
                run_config=train.RunConfig(
                    storage_path=f"{place}/results",
                    failure_config=train.FailureConfig(max_failures=1),
                    checkpoint_config=train.CheckpointConfig(num_to_keep=2),
                ),
            ).fit()
        finally:
            ray.shutdown()


if __name__ == "__main__":
    main()
