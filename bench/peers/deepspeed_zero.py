"""DeepSpeed's data parallel (stage 0) and ZeRO-1 (stage 1) on rows of ours: the peer of `parallel`.

    torchrun ... -m bench.peers.deepspeed_zero --stage 1 --base B --dataset D --batch 16 --steps 8

Prints a JSON line a rank: {rank, seconds of each step, anon: peak bytes while it steps}.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import deepspeed
import torch
from transformers import DistilBertForSequenceClassification

from bench.processes import Sampler
from howdah.data.manifest import load_dataset
from howdah.data.splits.planner import Planner, PlanSpec
from howdah.data.splits.shards import ShardSet
from howdah.training.data.readers import BatchSource


def main() -> None:
    """Train as one rank."""
    parser = argparse.ArgumentParser()
    for name, kind in (("dataset", str), ("base", str), ("stage", int), ("steps", int),
                       ("batch", int)):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    deepspeed.init_distributed("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    dataset = load_dataset(options.dataset)
    shards = ShardSet(dataset, "train")
    spec = PlanSpec(dataset_hash="zero", split="train", seed=1, global_batch_size=options.batch)
    source = BatchSource(
        shards, Planner(shards.lengths, spec), rank=rank, world=world, max_tokens=10**6,
        pad_multiple=2, stop_step=options.steps,
    )  # fmt: skip
    net = DistilBertForSequenceClassification.from_pretrained(
        options.base, num_labels=len(dataset.manifest.labels)
    )
    net.train()  # `from_pretrained` gives a model for inference: it would compute no dropout
    engine, *_ = deepspeed.initialize(
        model=net,
        optimizer=torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True),
        config={"train_batch_size": options.batch, "gradient_clipping": 1.0,
                "train_micro_batch_size_per_gpu": options.batch // world,
                "zero_optimization": {"stage": options.stage},
                "zero_allow_untested_optimizer": True,
                "zero_force_ds_cpu_optimizer": False},
    )  # fmt: skip
    seconds, begun, sampler = [], time.perf_counter(), None
    for batch in source:
        out = engine(
            input_ids=torch.from_numpy(batch.ids_BT).long(),
            attention_mask=torch.from_numpy(batch.mask_BT),
            labels=torch.from_numpy(batch.labels_B).long(),
        )
        engine.backward(out.loss)
        engine.step()
        now = time.perf_counter()
        seconds.append(now - begun)
        begun = now
        sampler = sampler or Sampler(lambda: {rank: os.getpid()}).start()  # from the second step on
    peak = max(size for _, sizes in sampler.stop() for size in sizes.values())
    print(json.dumps({"rank": rank, "seconds": seconds, "anon": peak}), flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
