"""A plain loop in torch over the rows of a dataset of ours: what each peer wraps in its own way."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

os.environ["USE_TF"] = "0"  # where TensorFlow is installed too, transformers would load it

import torch
from transformers import DistilBertForSequenceClassification

from bench.peers.progress import Progress
from howdah.data.manifest import load_dataset
from howdah.data.splits.planner import Planner, PlanSpec, PlanState
from howdah.data.splits.shards import ShardSet
from howdah.training.data.readers import BatchSource


@dataclass(frozen=True, kw_only=True)
class Job:
    """The same for every peer."""

    dataset: str
    base: str
    steps: int
    batch: int
    """Rows of a step, over all ranks."""
    threads: int
    out: str | None = None
    """Folder for what `Progress` writes."""
    save_every: int = 0


def update(net, optimizer) -> None:
    """Clip and step, where the gradients are complete after `backward`."""
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()


def train(
    job: Job,
    rank: int,
    world: int,
    *,
    wrap: Callable = lambda net, optimizer: (net, optimizer),
    update: Callable = update,
    first: int = 0,
    after: Callable[[int], None] = lambda step: None,
) -> list[float]:
    """Train as one rank; seconds of each step.

    Args:
        wrap: (model, optimizer) -> what trains, and its optimizer.
        update: (model, optimizer): makes the step.
        first: steps that were done before.
        after: called with the number of each completed step.
    """
    torch.set_num_threads(job.threads)
    dataset = load_dataset(job.dataset)
    net = DistilBertForSequenceClassification.from_pretrained(
        job.base, num_labels=len(dataset.manifest.labels)
    )
    net.train()  # `from_pretrained` gives a model for inference: it would compute no dropout
    net, optimizer = wrap(net, torch.optim.AdamW(net.parameters(), lr=1e-5, fused=True))
    shards = ShardSet(dataset, "train")
    spec = PlanSpec(dataset_hash="ddp", split="train", seed=1, global_batch_size=job.batch)
    planner = Planner(shards.lengths, spec)
    epoch, step = divmod(first, planner.steps_per_epoch)
    source = BatchSource(
        shards, planner, rank=rank, world=world, max_tokens=10**6, pad_multiple=2,
        start=PlanState(plan_hash=planner.plan_hash, epoch=epoch, step=step), stop_step=job.steps,
    )  # fmt: skip
    progress = Progress(job.out, rank)
    seconds = []
    begun = time.perf_counter()
    for number, batch in enumerate(source, start=first + 1):
        logits = net(
            input_ids=torch.from_numpy(batch.ids_BT).long(),
            attention_mask=torch.from_numpy(batch.mask_BT),
        ).logits
        torch.nn.functional.cross_entropy(
            logits, torch.from_numpy(batch.labels_B).long()
        ).backward()
        update(net, optimizer)
        optimizer.zero_grad()
        now = time.perf_counter()
        seconds.append(now - begun)
        begun = now
        progress.step(number)
        after(number)
    return seconds
