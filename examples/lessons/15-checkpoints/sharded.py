"""A checkpoint gathered and written by rank 0, and one that every rank writes its shard of.

The ranks are processes that this script forks: first two that save, then three that load.
"""

import ctypes
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ["USE_TF"] = "0"  # transformers would import TensorFlow, too
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint import state_dict as sd
from torch.distributed.fsdp import fully_shard
from transformers import DistilBertModel

torch.set_num_threads(1)
base = DistilBertModel.from_pretrained(sys.argv[1])  # 22.6 M weights; forked ranks inherit it
os.chdir((place := tempfile.TemporaryDirectory()).name)
WHOLE = sd.StateDictOptions(full_state_dict=True, cpu_offload=True)


def state(options=None):
    """What a checkpoint holds, by the names of the model that is not sharded."""
    weights, moments = sd.get_state_dict(model, optimizer, options=options)
    return {"model": weights, "optimizer": moments}


def peak_mb():
    """The most memory that this process has had resident."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1000


def measured(save):
    """Seconds of a save, and by how much it raises this rank's peak of memory."""
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # gives back what the step has left free
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew at what is resident now
    before, start = peak_mb(), time.perf_counter()
    save()
    dist.barrier()
    return time.perf_counter() - start, peak_mb() - before


def by_rank_0(path):
    """Gather on rank 0, which writes and renames."""
    whole = state(WHOLE)  # a collective: every rank sends its shards; only rank 0 keeps them all
    if dist.get_rank() == 0:
        torch.save(whole, path + ".tmp")
        os.replace(path + ".tmp", path)


def rank(number, world, phase):
    """One rank: shard, make one step, so that there are moments, and enter the phase."""
    global model, optimizer
    dist.init_process_group(
        "gloo", init_method=f"file://{os.getcwd()}/{phase.__name__}", rank=number, world_size=world
    )
    torch.manual_seed(number)
    model = base
    for block in model.transformer.layer:
        fully_shard(block)  # each rank keeps 1 / world of each weight, gradient and moment
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randint(1000, 30000, (8, 32))).last_hidden_state.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    phase(number)
    dist.destroy_process_group()


def save(number):
    """Save in three ways."""
    seconds, memory = measured(lambda: by_rank_0("rank0.pt"))
    all_seconds, all_memory = measured(lambda: dcp.save(state(), checkpoint_id="step-1"))
    # The thread that saves has collectives of its own: on the training's group they would mix.
    group, start = dist.new_group(backend="gloo"), time.perf_counter()
    saving = dcp.async_save(state(), checkpoint_id="async", process_group=group)
    held_up = time.perf_counter() - start
    saving.result()
    if number == 0:
        print(f"bytes written by rank 0 alone = {os.path.getsize('rank0.pt')} bytes")
        for shard in sorted(Path("step-1").glob("*.distcp")):  # __RANK_0.distcp
            print(f"bytes written by rank {shard.name[2]} of 2 = {shard.stat().st_size} bytes")
        print(f"memory that rank 0 needs to gather = {memory:.0f} MB")
        print(f"memory that rank 0 needs for its shard = {all_memory:.0f} MB")
        print(f"training waits, rank 0 alone = {seconds:.2f} s")
        print(f"training waits, all ranks = {all_seconds:.2f} s")
        print(f"training waits, all ranks, in a thread = {held_up:.2f} s")


def load(number):
    """Load what two ranks have saved, and compare it with what rank 0 had gathered."""
    shards = state()  # says which part of which tensor THIS rank needs, whatever ranks have saved
    dcp.load(shards, checkpoint_id="step-1")
    weights, moments = shards.values()
    sd.set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    whole = state(WHOLE)
    if number == 0:
        print("share that differs after loading on 3 ranks =", differs(whole, "rank0.pt"))


def differs(state, path):
    """Share of the weights and moments that are not those of the file."""
    other = torch.load(path)
    pairs = [(a, other["model"][name]) for name, a in state["model"].items()]
    for name, moments in state["optimizer"]["state"].items():
        pairs += [(a, other["optimizer"]["state"][name][key]) for key, a in moments.items()]
    return sum((a != b).sum().item() for a, b in pairs) / sum(a.numel() for a, _ in pairs)


for world, phase in ((2, save), (3, load)):
    mp.start_processes(rank, (world, phase), nprocs=world, start_method="fork")
