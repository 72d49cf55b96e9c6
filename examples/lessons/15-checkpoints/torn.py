"""A sharded checkpoint written over the last one, with a rank killed in the middle of it."""

import os
import signal
import tempfile
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
os.chdir((place := tempfile.TemporaryDirectory()).name)
warnings.filterwarnings("ignore")  # torch warns that step 2 overwrites; what it loses is below


class KilledOnRank1(dcp.FileSystemWriter):
    """Rank 0 writes its shard; rank 1 is killed before it writes its own."""

    def write_data(self, plan, planner):
        if dist.get_rank() == 1:
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        written = super().write_data(plan, planner)
        dist.barrier()
        return written


def rank(number, directories):
    """Save step 1 into the first directory, and step 2 into the second."""
    init = f"file://{os.getcwd()}/store-{directories[1]}"
    dist.init_process_group("gloo", init_method=init, rank=number, world_size=2)
    model = fully_shard(torch.nn.Linear(1000, 1000, bias=False))
    for step, directory in enumerate(directories, start=1):
        torch.nn.init.constant_(model.weight, step)  # all weights of step 1 are 1, of step 2 are 2
        writer = dcp.FileSystemWriter if step == 1 else KilledOnRank1
        dcp.save(get_model_state_dict(model), storage_writer=writer(directory))


for directories in (("same", "same"), ("step-1", "step-2")):
    try:
        mp.start_processes(rank, (directories,), nprocs=2, start_method="fork")
    except mp.ProcessExitedException as error:
        print(
            f"Step 1 is in {directories[0]}/; while step 2 was saved to {directories[1]}/:", error
        )
    newest = directories[1] if os.path.exists(directories[1] + "/.metadata") else directories[0]
    dcp_to_torch_save(newest, "newest.pt")  # raises nothing
    weight = torch.load("newest.pt")["weight"]
    way = "the same directory" if newest == "same" else "a directory a step"
    for step in (1, 2):
        share = (weight == step).float().mean()
        print(f"share of the weights that a resume loads of step {step}, {way} = {share:g}")
