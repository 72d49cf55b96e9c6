"""The course's split linear layers over real processes, and the pair that sends a quarter of that.

Written with plain collectives. Each rank holds its part of the weights and computes its part of
the numbers. The batch is the same on all ranks.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import linear, relu

ROWS, WIDTH, HIDDEN = 64, 1024, 4096


class Gather(torch.autograd.Function):
    """Joins the ranks' columns; backward, each rank keeps the gradient of its own columns."""

    @staticmethod
    def forward(ctx, part):
        parts = [torch.empty_like(part) for _ in range(world)]
        dist.all_gather(parts, part.contiguous())
        # A ring sends each of the other ranks' parts once.
        count("gather", part.nbytes * (world - 1))
        return torch.cat(parts, dim=-1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(world, dim=-1)[rank]


class Copy(torch.autograd.Function):
    """The same input for all ranks; backward, their gradients of it are added."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return add_over_ranks(gradient)


class Add(torch.autograd.Function):
    """Adds the ranks' partial results; backward, each gets the whole gradient."""

    @staticmethod
    def forward(ctx, partial):
        return add_over_ranks(partial)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def add_over_ranks(x):
    """A sum over the ranks, of which a ring sends 2 (N - 1) / N through each."""
    total = x.clone()
    dist.all_reduce(total)
    count("all-reduce", 2 * (world - 1) * x.nbytes // world)
    return total


def count(name, nbytes):
    """Add to the bytes that this rank has sent."""
    sent[name] = sent.get(name, 0) + nbytes


def columns(weight):
    """This rank's outputs of a layer: rows of torch's (out, in) matrix."""
    return weight.detach().chunk(world)[rank].clone().requires_grad_()


def report(name, y, parts):
    """Compares the output and all gradients with those of the undivided model."""
    x.grad = None
    y.square().mean().backward()
    errors = [(y - whole_y).abs().max() / whole_y.abs().max()]
    errors.append((x.grad - whole_x_grad).abs().max() / whole_x_grad.abs().max())
    for part, whole, dim in parts:
        expected = whole.grad.chunk(world, dim=dim)[rank] if dim is not None else whole.grad
        errors.append((part.grad - expected).abs().max() / whole.grad.abs().max())
    worst = torch.stack(errors).max().detach()
    dist.all_reduce(worst, dist.ReduceOp.MAX)
    if rank == 0:
        print(f"{name}, largest difference of output and gradients = {worst:.8f}")
        print(f"{name}, sent by a rank in a step = {sum(sent.values()) / 2**10:.0f} KiB")
    sent.clear()


torch.set_num_threads(1)
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
dist.init_process_group("gloo")
rank, world, sent = dist.get_rank(), dist.get_world_size(), {}

torch.manual_seed(0)  # the same weights and rows on every rank
layer1, layer2 = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)
x = torch.randn(ROWS, WIDTH, requires_grad=True)  # as of an earlier layer
whole_y = layer2(relu(layer1(x)))
whole_y.square().mean().backward()
whole_x_grad = x.grad

# The course's TensorParallelModel: both layers are split by their outputs, and each result is
# joined before the next layer. What is joined first is the wide one, 4096 numbers a row.
w1, b1, w2, b2 = (columns(p) for p in (layer1.weight, layer1.bias, layer2.weight, layer2.bias))
hidden = Copy.apply(relu(Gather.apply(linear(Copy.apply(x), w1, b1))))
y = Gather.apply(linear(hidden, w2, b2))
split = [(w1, layer1.weight, 0), (b1, layer1.bias, 0)]
report("course's split", y, [*split, (w2, layer2.weight, 0), (b2, layer2.bias, 0)])

# Megatron's pair: the second layer is split by its inputs, which are just the outputs that the
# rank has, and ReLU needs one number at a time. So one sum of 1024 numbers a row is all.
w1, b1 = columns(layer1.weight), columns(layer1.bias)
w2 = layer2.weight.detach().chunk(world, dim=1)[rank].clone().requires_grad_()
b2 = layer2.bias.detach().clone().requires_grad_()  # whole on each rank, added once
y = Add.apply(linear(relu(linear(Copy.apply(x), w1, b1)), w2)) + b2
split = [(w1, layer1.weight, 0), (b1, layer1.bias, 0)]
report("columns, then rows", y, [*split, (w2, layer2.weight, 1), (b2, layer2.bias, None)])
dist.destroy_process_group()
