"""The pipeline's bubble, measured. Compute is a sleep: two cores cannot run three stages at once.

A stage sleeps 0.2 s for a batch's forward pass and 0.4 s for its backward pass, or the share of
that which a micro-batch has. torch sends real tensors between the stages' processes.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

FORWARD = float(sys.argv[1]) if len(sys.argv) > 1 else 0.2  # seconds of a batch in one stage
ROWS, WIDTH, STEPS = 64, 16, 3
COURSE = (0.698, 0.287, 0.015)  # the share of weights, so of compute, of the course's stages
spans = []  # (pass, start, end) of each time that this rank computed


class SimulatedCompute(torch.autograd.Function):
    """Sleeps as long as a real stage would compute for these rows; passes the values on."""

    @staticmethod
    def forward(ctx, x, seconds_per_row):
        ctx.seconds_per_row = seconds_per_row
        sleep("forward", seconds_per_row * len(x))
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        sleep("backward", 2 * ctx.seconds_per_row * len(gradient))
        return gradient, None


def sleep(name, seconds):
    """Sleep, and keep when."""
    start = time.monotonic()  # one clock for all processes of a machine
    time.sleep(seconds)
    spans.append((name, start, time.monotonic()))


class Stage(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.layer, self.seconds_per_row = nn.Linear(WIDTH, WIDTH), seconds / ROWS

    def forward(self, x):
        y = self.layer(x)
        # torch runs a stage once on `meta` tensors to learn its shapes: nothing to simulate then.
        return y if y.is_meta else SimulatedCompute.apply(y, self.seconds_per_row)


def run(schedule_class, micro_batches, share):
    """The bubble: the share of a step's time in which ranks did not compute, and their spans."""
    stage = PipelineStage(Stage(FORWARD * world * share), rank, world, torch.device("cpu"))
    schedule = schedule_class(stage, micro_batches, loss_fn=nn.functional.mse_loss)
    x, target, bubbles = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH), []
    for step in range(1 + STEPS):
        spans.clear()
        dist.barrier()
        rows = (x,) if rank == 0 else ()
        schedule.step(*rows, target=target if rank == world - 1 else None)
        ranks = [None] * world
        dist.all_gather_object(ranks, spans)
        work = [(start, end) for rank_spans in ranks for _, start, end in rank_spans]
        wall = max(end for _, end in work) - min(start for start, _ in work)
        if step:  # in the first step the stages also exchanged shapes
            bubbles.append(1 - sum(end - start for start, end in work) / (wall * world))
    return sorted(bubbles)[STEPS // 2], ranks


def most_held(rank_spans):
    """The largest number of micro-batches whose activations a rank kept at once."""
    held = [0]
    for name, _, _ in rank_spans:
        held.append(held[-1] + (1 if name == "forward" else -1))
    return max(held)


def draw(timelines):
    """One row of bars a rank, for each timeline."""
    import matplotlib.pyplot as plt  # rank 0 alone needs it

    grey = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    plt.rcParams.update(dict.fromkeys(grey, "#808080"))
    figure, axes = plt.subplots(len(timelines), 1, sharex=True, figsize=(6, 3.2))
    for axis, (title, ranks) in zip(axes, timelines.items(), strict=True):
        zero = min(rank_spans[0][1] for rank_spans in ranks)
        for number, rank_spans in enumerate(ranks, 1):
            for name, start, end in rank_spans:
                color = "tab:blue" if name == "forward" else "tab:orange"
                axis.barh(number, end - start, left=start - zero, color=color, ec="#808080", lw=0.4)
        axis.set(ylabel="stage", yticks=range(1, world + 1), ylim=(world + 0.5, 0.5))
        axis.set_title(title, fontsize=9)
    axes[-1].set_xlabel("seconds of one step (blue: forward, orange: backward)")
    figure.tight_layout(pad=0.4)
    figure.savefig("bubble.svg", transparent=True)


torch.set_num_threads(1)
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
gpipe = {count: run(ScheduleGPipe, count, 1 / world) for count in (1, 2, 4, 8)}
alternating, alternating_ranks = run(Schedule1F1B, 8, 1 / world)
course, _ = run(ScheduleGPipe, 8, COURSE[rank])
if rank == 0:
    for count, (bubble, _) in gpipe.items():
        formula = (world - 1) / (count + world - 1)
        print(f"{count} micro-batches, bubble measured = {bubble:.3f}")
        print(f"{count} micro-batches, (S - 1) / (M + S - 1) = {formula:.3f}")
    print(f"8 micro-batches, 1F1B, bubble measured = {alternating:.3f}")
    print(f"8 micro-batches, the course's uneven stages, bubble measured = {course:.3f}")
    print(f"8 micro-batches, held by stage 1, GPipe = {most_held(gpipe[8][1][0])}")
    print(f"8 micro-batches, held by stage 1, 1F1B = {most_held(alternating_ranks[0])}")
    timelines = {"8 micro-batches, GPipe": gpipe[8][1], "8 micro-batches, 1F1B": alternating_ranks}
    draw({"1 micro-batch: one stage works at a time": gpipe[1][1]} | timelines)
dist.destroy_process_group()
