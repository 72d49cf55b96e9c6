"""DeepSpeed's ZeRO-1 trains Hugging Face's class on a dataset of Howdah, by DeepSpeed's loop.

    python examples/deepspeed_zero.py run.yaml

torchrun starts this file again for each rank. It has no resume, evaluation or export, unlike
Howdah's ZeRO-1. run.json has the result.
"""

import os
import subprocess
import sys

import verdict

RANKS = 2
PROGRAM = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS),
           "--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:0",
           "--local-addr", "127.0.0.1"]  # fmt: skip


def start(config_path: str, config) -> None:
    """Start the ranks."""
    from shared_rows import require_no_run

    require_no_run(config)
    here = {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    env = os.environ | here | {"USE_TF": "0"}
    subprocess.run([*PROGRAM, __file__, config_path], check=True, env=env)


def rank(config) -> None:
    """Train as one rank."""
    import deepspeed
    import torch
    from shared_rows import batches, finish
    from transformers import DistilBertForSequenceClassification

    training = config.training
    # DeepSpeed would compile its sum in shared memory first; gloo's needs no compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    me, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    source, labels = batches(config, me, world)
    net = DistilBertForSequenceClassification.from_pretrained(config.model.base, num_labels=labels)
    net.train()  # `from_pretrained` returns a model in evaluation mode, without dropout
    engine, *_ = deepspeed.initialize(
        model=net,
        optimizer=torch.optim.AdamW(net.parameters(), lr=training.learning_rate),
        config={"train_batch_size": training.global_batch_size, "gradient_clipping": 1.0,
                "train_micro_batch_size_per_gpu": training.global_batch_size // world,
                "zero_optimization": {"stage": 1}, "zero_allow_untested_optimizer": True,
                "zero_force_ds_cpu_optimizer": False},
    )  # fmt: skip
    for batch in source:
        ids, mask = torch.from_numpy(batch.ids_BT).long(), torch.from_numpy(batch.mask_BT)
        labels_B = torch.from_numpy(batch.labels_B).long()
        labels_B[torch.from_numpy(batch.weights_B) == 0] = -100  # fillers of an epoch's last batch
        engine.backward(loss := engine(input_ids=ids, attention_mask=mask, labels=labels_B).loss)
        engine.step()
    if me == 0:
        finish(config, steps=engine.global_steps, loss=loss.item(), system="DeepSpeed ZeRO-1")


if __name__ == "__main__":
    if "RANK" in os.environ:
        from howdah.config.loader import load

        sys.exit(rank(load(sys.argv[1])))
    sys.exit(verdict.main(start))
