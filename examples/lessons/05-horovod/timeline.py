"""Watch Horovod fuse small tensors and wait for its cycle, in the timeline that it writes."""

import itertools
import json
import os
import statistics
import subprocess
import sys
import time

import matplotlib.pyplot as plt

LAYERS, WIDTH, STEPS = 40, 64, 20
HOROVODRUN = ["horovodrun", "--gloo", "--network-interfaces", "lo", "-np", "2"]
CASES = {
    "defaults": [],  # up to 128 MB in one buffer, a cycle of 1 ms
    "no fusion": ["--fusion-threshold-mb", "0"],
    "cycle of 50 ms": ["--cycle-time-ms", "50"],
}


def train():
    """Take some steps as one of the ranks: 80 tensors, 0.7 MB."""
    import horovod.torch as hvd
    import torch

    hvd.init()
    torch.set_num_threads(1)
    parts = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)]
    model = torch.nn.Sequential(*parts)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    rows = torch.randn(32, WIDTH)
    seconds = []
    for _ in range(STEPS):
        began = time.perf_counter()
        optimizer.zero_grad()
        model(rows).square().mean().backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    if hvd.rank() == 0:
        with open("seconds", "w") as file:
            file.write(str(statistics.median(seconds)))


def read(path):
    """(moments at which gradients are ready, (start, end) of each all-reduce), in ms, in order."""
    with open(path) as file:
        events = json.loads(file.read().rstrip(",\n]") + "]")  # the end is cut off by the exit
    ready = [one["ts"] / 1000 for one in events if one.get("name") == "NEGOTIATE_ALLREDUCE"]
    # Each tensor has a lane; those of one fused operation begin one after the other.
    operations = []
    for name, group in itertools.groupby(events, lambda one: one.get("name") or one["ph"]):
        group = list(group)
        if name == "GLOO_ALLREDUCE":
            operations.append([group[0]["ts"] / 1000, None, len(group)])
        elif name == "E" and operations and operations[-1][1] is None:
            operations[-1][1] = group[0]["ts"] / 1000
    return ready, operations


def main():
    """Start the two ranks three times and read their timelines."""
    for key in ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"):
        plt.rcParams[key] = "#808080"
    plt.figure(figsize=(6, 3.2), layout="constrained")
    for place, (name, options) in enumerate(CASES.items()):
        path = os.path.abspath(name.replace(" ", "-") + ".json")
        rank = [*options, sys.executable, __file__]
        subprocess.run([*HOROVODRUN, "--timeline-filename", path, *rank], check=True)
        ready, operations = read(path)
        with open("seconds") as file:
            print(f"{name}: a step = {1000 * float(file.read()):.1f} ms")
        print(f"{name}: gradients in a step = {len(ready) / STEPS:g}")
        print(f"{name}: all-reduces in a step = {len(operations) / STEPS:.1f}")
        print(f"{name}: most gradients in one all-reduce = {max(one[2] for one in operations)}")
        ready = ready[-2 * LAYERS :]  # of the last step
        bars = [(start, end - start) for start, end, _ in operations if start > ready[0]]
        plt.broken_barh([(one - ready[0], width) for one, width in bars], (place - 0.3, 0.3))
        plt.plot(
            [one - ready[0] for one in ready], [place + 0.2] * len(ready), "|", color="tab:red"
        )
    plt.yticks(range(len(CASES)), CASES)
    plt.gca().invert_yaxis()
    plt.xlabel("milliseconds after the last step's first gradient")
    plt.title("Gradients that are ready (red), all-reduces (blue)", fontsize=10)
    plt.savefig("timeline.svg", transparent=True)


if "HOROVOD_RANK" in os.environ:
    train()
else:
    main()
