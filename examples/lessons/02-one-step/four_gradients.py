"""Average the gradients of four ranks by one all-reduce, with the numbers of the worked example."""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

GRADIENTS = torch.tensor(
    [
        [1.0, 2.0, 3.0],  # of rank 0
        [1.5, 2.5, 3.5],  # of rank 1
        [0.8, 1.8, 2.8],  # of rank 2
        [1.2, 2.2, 3.2],  # of rank 3
    ]
)


def work(rank, ranks, store):
    """Average as one of the ranks."""
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)

    gradient = GRADIENTS[rank].clone()
    dist.all_reduce(gradient)  # in place: every rank now has the sum
    gradient /= ranks

    # Only to print them: no rank needs the others' results.
    results = [torch.empty_like(gradient) for _ in range(ranks)]
    dist.all_gather(results, gradient)

    if rank == 0:
        print("rank   before the all-reduce    after it, divided by 4")
        for number, vectors in enumerate(zip(GRADIENTS, results, strict=True)):
            before, after = ["  ".join(f"{one:.3f}" for one in vector) for vector in vectors]
            print(f"{number:4}   {before}      {after}")
        for number, value in enumerate(gradient):
            print(f"average of element {number} = {value:.3f}")
        different = {tuple(one.tolist()) for one in results}
        print(f"different results over the four ranks = {len(different)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"  # by this file the ranks find each other
        mp.start_processes(work, args=(4, store), nprocs=4, start_method="fork")
