"""DeepSpeed's ZeRO-1, 2, 3 and its offload fine-tune DistilBERT; then a checkpoint goes on."""

import contextlib
import copy
import gc
import os
import pathlib
import sys
import time

os.environ |= {"USE_TF": "0", "GLOO_SOCKET_IFNAME": "lo"}

import deepspeed
import pandas as pd
import torch
import torch.distributed as dist
from deepspeed.utils import logger
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from transformers import AutoTokenizer, DistilBertForSequenceClassification, logging

ROWS, TOKENS, STEPS = 8, 32, 4  # rows of a rank and step
MIB = 2**20
WAYS = {
    "no ZeRO": {"stage": 0},
    "ZeRO-1": {"stage": 1},
    "ZeRO-2": {"stage": 2},
    "ZeRO-3": {"stage": 3, "stage3_param_persistence_threshold": 0},  # divide small tensors, too
    "ZeRO-2, optimizer offloaded": {"stage": 2, "offload_optimizer": {"device": "cpu"}},
}


def engine_of(zero):
    """A fresh model in DeepSpeed's engine, which owns backward, sums and update."""
    model = copy.deepcopy(base)
    # Buckets for this small model: the defaults are 500 M elements, 2 GB that stage 3 allocates.
    buckets = {"reduce_bucket_size": 2_000_000, "allgather_bucket_size": 2_000_000}
    config = {"train_micro_batch_size_per_gpu": ROWS, "zero_optimization": buckets | zero,
              "zero_allow_untested_optimizer": True,  # torch's AdamW instead of a compiled one
              "zero_force_ds_cpu_optimizer": False}  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]


def train(engine, steps):
    """The course's loop: (mean loss of all ranks, tensors after the last backward, seconds)."""
    seconds = []
    for step in steps:
        start = time.perf_counter()
        part = slice((step * world + rank) * ROWS, (step * world + rank + 1) * ROWS)
        loss = engine(**{k: v[part] for k, v in encoded.items()}, labels=labels[part]).loss
        engine.backward(loss)
        held = tensors_held() if step == steps[-1] else 0
        engine.step()
        seconds.append(time.perf_counter() - start)
    mean = loss.detach().clone()
    dist.all_reduce(mean)
    return mean.item() / world, held, min(seconds)


def tensors_held():
    """Bytes of all tensors of this process; tensors that share memory count once."""
    gc.collect()
    tensors = (x for x in gc.get_objects() if issubclass(type(x), torch.Tensor))
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


torch.set_num_threads(1)
logger.setLevel("ERROR")
logging.set_verbosity_error()
# DeepSpeed would compile its sum in shared memory first; gloo's needs no compiler.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
texts, model_path = sys.argv[-2:]  # the launcher puts --local_rank before them
table = pd.read_parquet(texts).query("text.str.len() > 200").sample(500, random_state=0)
labels = torch.tensor(pd.factorize(table["label"], sort=True)[0])
options = {"padding": "max_length", "truncation": True, "return_tensors": "pt"}
tokenizer = AutoTokenizer.from_pretrained(model_path)
encoded = tokenizer(list(table["text"]), max_length=TOKENS, **options)
torch.manual_seed(0)
base = DistilBertForSequenceClassification.from_pretrained(model_path, num_labels=9)
base.eval()  # no dropout, so that all ways can be compared

if rank == 0:
    print(f"weights = {sum(p.nbytes for p in base.parameters()) / MIB:.0f} MiB")
for name, zero in WAYS.items():
    before = tensors_held()
    engine = engine_of(zero)
    loss, after_backward, seconds = train(engine, range(STEPS))
    between_steps = tensors_held() - before
    if rank == 0:
        print(f"{name}, loss of step {STEPS} = {loss:.6f}")
        print(
            f"{name}, tensors of a rank after backward = {(after_backward - before) / MIB:.0f} MiB"
        )
        print(f"{name}, tensors of a rank between steps = {between_steps / MIB:.0f} MiB")
        print(f"{name}, step = {seconds:.2f} s")
    if name == "ZeRO-2":
        engine.save_checkpoint("checkpoint", tag="step4")  # every rank must call this
        saved = {name: p.detach().clone() for name, p in engine.module.named_parameters()}
        uninterrupted, _, _ = train(engine, [STEPS])
    engine.destroy()
    del engine

# A new engine goes on from the files. Each rank reads its own part, so the same number of ranks.
engine = engine_of(WAYS["ZeRO-2"])
engine.load_checkpoint("checkpoint")
resumed, _, _ = train(engine, [STEPS])
if rank == 0:
    print(f"loss of step 5, uninterrupted = {uninterrupted:.6f}")
    print(f"loss of step 5, resumed = {resumed:.6f}")
    # Puts the ranks' files together, as the script `zero_to_fp32.py` beside them does.
    with contextlib.redirect_stdout(sys.stderr):
        state = get_fp32_state_dict_from_zero_checkpoint("checkpoint", tag="step4")
    different = max((state[name] - value).abs().max() for name, value in saved.items())
    print(f"largest difference of the weights in the files = {different:.8f}")
    for path in sorted(pathlib.Path("checkpoint").rglob("*.pt")):
        print(f"size of {path} = {path.stat().st_size / MIB:.0f} MiB")
dist.destroy_process_group()
