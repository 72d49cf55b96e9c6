"""Plain torch DDP over gloo on the rows of a dataset of ours: the peer of the np=2 bench.

    torchrun is not needed: `python -m bench.peers.ddp_gloo --world 2 ...` starts its ranks itself.
Prints one JSON line: seconds of each timed step on rank 0.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel
from transformers import DistilBertForSequenceClassification

from howdah.data.manifest import load_dataset
from training.data.planner import Planner, PlanSpec
from training.data.readers import BatchSource
from training.data.shards import ShardSet


def _rank(rank: int, options: argparse.Namespace) -> None:
    torch.set_num_threads(options.threads)
    if options.world > 1:
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group(
            "gloo", init_method=f"file://{options.meet}", rank=rank, world_size=options.world
        )
    dataset = load_dataset(options.dataset)
    model = DistilBertForSequenceClassification.from_pretrained(
        options.base, num_labels=len(dataset.manifest.labels)
    )
    net = DistributedDataParallel(model) if options.world > 1 else model
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True)
    shards = ShardSet(dataset, "train")
    spec = PlanSpec(dataset_hash="ddp", split="train", seed=1, global_batch_size=options.batch)
    source = BatchSource(
        shards, Planner(shards.lengths, spec), rank=rank, world=options.world, max_tokens=10**6,
        pad_multiple=2, stop_step=options.steps,
    )  # fmt: skip
    seconds = []
    begun = time.perf_counter()
    for batch in source:
        logits = net(
            input_ids=torch.from_numpy(batch.ids_BT).long(),
            attention_mask=torch.from_numpy(batch.mask_BT),
        ).logits
        torch.nn.functional.cross_entropy(
            logits, torch.from_numpy(batch.labels_B).long()
        ).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        seconds.append(now - begun)
        begun = now
    if rank == 0:
        print(json.dumps(seconds))
        sys.stdout.flush()


def main() -> None:
    """Start the ranks."""
    parser = argparse.ArgumentParser()
    for name, kind in (("dataset", str), ("base", str), ("meet", str), ("world", int),
                       ("steps", int), ("batch", int), ("threads", int)):  # fmt: skip
        parser.add_argument(f"--{name}", type=kind, required=True)
    options = parser.parse_args()
    if options.world == 1:
        _rank(0, options)
    else:
        mp.spawn(_rank, args=(options,), nprocs=options.world)


if __name__ == "__main__":
    main()
