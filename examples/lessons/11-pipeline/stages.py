"""The course's three stages as three processes: the same gradients as in one process."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

ROWS, MICRO_BATCHES = 64, 4


def course_stages():
    """The three stages of the course's PipelineParallelModel, equal on every rank."""
    torch.manual_seed(0)
    linear, relu = nn.Linear, nn.ReLU
    return [
        nn.Sequential(linear(1024, 2048), relu(), linear(2048, 2048), relu()),
        nn.Sequential(linear(2048, 1024), relu(), linear(1024, 512), relu()),
        nn.Sequential(linear(512, 256), relu(), linear(256, 10)),
    ]


def bytes_of(parameters):
    """The bytes of these weights."""
    return sum(weight.nbytes for weight in parameters)


torch.set_num_threads(1)
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
first, last = rank == 0, rank == world - 1

stages = course_stages()
x, labels = torch.randn(ROWS, 1024), torch.randint(10, (ROWS,))

# One process with all stages: what the pipeline must reproduce.
whole = nn.Sequential(*course_stages())
whole_loss = nn.functional.cross_entropy(whole(x), labels)
whole_loss.backward()

# This process holds one stage. Only the first stage gets rows, only the last gets labels; torch
# sends activations to the next stage and their gradients back.
stage = PipelineStage(stages[rank], rank, world, torch.device("cpu"))
schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=nn.functional.cross_entropy)
losses = []
rows = (x,) if first else ()
schedule.step(*rows, target=labels if last else None, losses=losses)

# Each rank compares its own stage; rank 0 prints.
pairs = zip(stages[rank].parameters(), whole[rank].parameters(), strict=True)
difference = max((mine.grad - one.grad).abs().max().item() for mine, one in pairs)
scale = max(one.grad.abs().max().item() for one in whole[rank].parameters())
mean_loss = torch.stack(losses).mean().item() if last else None
output_width = stages[rank][-2].out_features if not last else 0  # the ReLU keeps the width
facts = [None] * world
dist.all_gather_object(
    facts, (difference / scale, bytes_of(stages[rank].parameters()), output_width, mean_loss)
)
if first:
    differences, weights, widths, mean_losses = zip(*facts, strict=True)
    print(f"loss in one process = {whole_loss.item():.7f}")
    print(f"loss of the pipeline, mean of {MICRO_BATCHES} micro-batches = {mean_losses[-1]:.7f}")
    print(f"largest difference of a gradient, of the largest = {max(differences):.9f}")
    for number, stage_bytes in enumerate(weights, 1):
        print(f"weights of stage {number} = {stage_bytes / 2**20:.2f} MiB")
    for number, width in enumerate(widths[:-1], 1):
        activations = ROWS * width * 4
        print(f"sent from stage {number} to the next in a step = {activations / 2**10:.0f} KiB")
    print(f"sent in a step, both ways = {2 * ROWS * sum(widths) * 4 / 2**20:.2f} MiB")
    print(f"gradients that data parallelism would sum = {sum(weights) / 2**20:.2f} MiB")
dist.destroy_process_group()
