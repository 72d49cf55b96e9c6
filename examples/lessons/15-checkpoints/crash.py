"""Kills a training with SIGKILL at each point of a save; the next start resumes it, bit by bit."""

import hashlib
import io
import multiprocessing
import os
import signal
import tempfile
from pathlib import Path

import torch
import torch._dynamo  # the first optimizer step imports it, in each forked process anew
from torch import nn

torch.set_num_threads(1)
os.chdir((place := tempfile.TemporaryDirectory()).name)
STEPS, KILLED_AT, ROWS = 6, 4, 512
data = torch.randn(ROWS, 256, generator=torch.Generator().manual_seed(1))
kill_at = None  # the point of step 4's save at which this process dies


def point(name):
    """A point of the save, which may be this process's last."""
    if name == kill_at:
        os.kill(os.getpid(), signal.SIGKILL)  # no handler, no `finally`, no flush


def write(path, content):
    """Write a file in two halves."""
    point("before the write")
    with open(path, "wb", buffering=0) as file:
        file.write(content[: len(content) // 2])
        point("in the middle of the write")
        file.write(content[len(content) // 2 :])
        os.fsync(file.fileno())  # a power cut loses what is only in memory; SIGKILL does not
    point("after the write")


def over_the_last_one(directory, step, content):
    """Save as a plain torch.save(state, "last.pt") does."""
    write(directory / "last.pt", content)


def renamed_last(directory, step, content):
    """Save under a name that no reader looks for, then rename."""
    write(directory / "unfinished", content)
    os.replace(directory / "unfinished", directory / f"step-{step}.pt")  # atomic
    point("after the rename")


def newest_whole(directory):
    """The newest checkpoint that is what its writer wrote, or None."""
    for path in sorted(directory.glob("*.pt"), reverse=True):
        content = path.read_bytes()
        if hashlib.sha256(content[32:]).digest() == content[:32]:
            return torch.load(io.BytesIO(content[32:]))
    return None


def train(directory, save, die_at=None, without=()):
    """Resume from the newest whole checkpoint, train to the end; leave the weights in a file."""
    global kill_at
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Dropout(0.3), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=STEPS)
    parts = {"model": model, "moments": optimizer, "schedule": schedule}
    state = newest_whole(directory) or {}
    (directory / "resumed").write_text(str(state.get("step", 0)))
    state = {name: state[name] for name in state.keys() - without}
    for name in parts.keys() & state.keys():
        parts[name].load_state_dict(state[name])
    if "generator" in state:
        torch.set_rng_state(state["generator"])  # of the dropout
    step = state.get("step", 0)
    # The order of an epoch's rows depends on its number alone: so the step is the place in it.
    order = torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))
    while step < STEPS:
        rows = order[step * 32 : step * 32 + 32]
        nn.functional.cross_entropy(model(data[rows]), data[rows, :10].argmax(1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        step += 1
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save(state | {"step": step, "generator": torch.get_rng_state()}, file := io.BytesIO())
        kill_at = die_at if step == KILLED_AT else None
        save(directory, step, hashlib.sha256(file.getvalue()).digest() + file.getvalue())
    torch.save(model.state_dict(), directory / "weights")


def in_a_process(directory, *arguments):
    """Train in a process of its own, which may be killed."""
    directory.mkdir(exist_ok=True)
    process = multiprocessing.get_context("fork").Process(
        target=train, args=(directory, *arguments)
    )
    process.start()
    process.join()


def difference(directory):
    """Largest difference of the weights to those of the run that was never interrupted."""
    weights, others = (torch.load(path / "weights") for path in (Path("uninterrupted"), directory))
    return f"{max((weights[name] - others[name]).abs().max() for name in weights):g}"


in_a_process(Path("uninterrupted"), renamed_last)
points = ["before the write", "in the middle of the write", "after the write", "after the rename"]
for save, last in ((over_the_last_one, 3), (renamed_last, 4)):
    for when in points[:last]:
        way = f"{save.__name__.replace('_', ' ')}, killed {when}"
        in_a_process(Path(way), save, when)
        in_a_process(Path(way), save)
        print(f"resumes after step, {way} =", (Path(way) / "resumed").read_text())
        print(f"difference, {way} =", difference(Path(way)))
for part in ("moments", "schedule", "generator", "step"):
    in_a_process(directory := Path(f"without {part}"), renamed_last, "after the rename")
    in_a_process(directory, lambda *_: None, None, {part})
    print(f"difference, resumed without the {part} =", difference(directory))
