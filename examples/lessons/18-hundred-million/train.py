"""Steps 4 to 8: python train.py MODEL [STEPS]. Stopped at half of the steps, the ranks go on."""

import contextlib
import json
import os
import sys
from pathlib import Path

from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession

STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 40
BATCH, PIECES, RATE, SAVE_EVERY = 16, 2, 3e-4, 10  # rows of a rank in one pass; passes of a step


def train(model_dir, place, until):
    """One rank: train up to the step `until`, then evaluate. Rank 0's answer is returned."""
    import glob
    import itertools
    import time

    import pyarrow.parquet as pq
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from transformers import AutoModelForSequenceClassification, get_cosine_schedule_with_warmup

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())

    def batches(split):
        """This rank's files are every world-th. Widths are 32 or 64: bf16 compiles for each one."""
        files = sorted(glob.glob(f"{place}/ready/split={split}/*.parquet"))
        for file in files[dist.get_rank() :: dist.get_world_size()]:
            table = pq.ParquetFile(file).read()
            for first in range(0, table.num_rows - BATCH + 1, BATCH):
                part = table.slice(first, BATCH).to_pydict()
                ids = torch.nn.utils.rnn.pad_sequence(list(map(torch.tensor, part["ids"])), True)
                ids = torch.nn.functional.pad(ids, (0, -ids.shape[1] % 32))
                batch = {"input_ids": ids, "attention_mask": (ids != 0).long()}
                yield batch, torch.tensor(part["label"])

    prepared = json.loads(Path(place, "prepare.json").read_text("utf-8"))
    counts = torch.tensor(list(prepared["labels"].values()), dtype=torch.float)
    model = AutoModelForSequenceClassification.from_pretrained(model_dir, num_labels=len(counts))
    replica = DistributedDataParallel(model)
    loss_of = torch.nn.CrossEntropyLoss(weight=counts.sum() / counts / len(counts))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = get_cosine_schedule_with_warmup(optimizer, STEPS // 10, STEPS)
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule}
    checkpoint, begin = Path(place, "checkpoint.pt"), 0
    if checkpoint.exists():  # on a storage that all ranks reach
        saved = torch.load(checkpoint, weights_only=True)
        begin = saved["step"]
        for name, part in parts.items():
            part.load_state_dict(saved[name])

    rows, seconds = list(itertools.islice(batches("train"), PIECES * STEPS)), []
    model.train()
    for step in range(begin, until):
        began = time.perf_counter()
        for piece in range(PIECES):
            batch, label = rows[step * PIECES + piece]
            is_last = piece == PIECES - 1  # the gradients are summed over the ranks once a step
            with contextlib.nullcontext() if is_last else replica.no_sync():
                with torch.autocast("cpu", torch.bfloat16):
                    logits = replica(**batch).logits
                (loss_of(logits.float(), label) / PIECES).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - began)
        if dist.get_rank() == 0 and ((step + 1) % SAVE_EVERY == 0 or step + 1 == until):
            state = {name: part.state_dict() for name, part in parts.items()}
            torch.save(state | {"step": step + 1}, f"{checkpoint}.part")
            os.replace(f"{checkpoint}.part", checkpoint)  # whole, or not there

    model.eval()
    right = torch.zeros(2)
    with torch.no_grad():
        for batch, label in itertools.islice(batches("validation"), 40):
            right += torch.tensor([(model(**batch).logits.argmax(1) == label).sum(), len(label)])
    dist.all_reduce(right)
    gradient = torch.zeros(sum(weight.numel() for weight in model.parameters()))
    began = time.perf_counter()
    dist.all_reduce(gradient)
    reduced = time.perf_counter() - began
    del replica  # before its group: the other way round it may deadlock on the GIL (torch 2.13)
    dist.destroy_process_group()
    return {"begin": begin, "seconds": sorted(seconds)[len(seconds) // 2], "right": right.tolist(),
            "reduced": reduced, "gradient_bytes": 4 * len(gradient)}  # fmt: skip


os.environ |= {"PYSPARK_PYTHON": sys.executable, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
os.environ["USE_TF"] = "0"  # transformers would import TensorFlow into each rank
Path("checkpoint.pt").unlink(missing_ok=True)
spark = (
    SparkSession.builder.master("local[2]").config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.ui.enabled", "false")
    .config("spark.ui.showConsoleProgress", "false").getOrCreate()
)  # fmt: skip
spark.sparkContext.setLogLevel("ERROR")
distributor = TorchDistributor(num_processes=2, local_mode=False, use_gpu=False)
with contextlib.redirect_stdout(sys.stderr):  # it prints what ranks write, warnings as well
    first = distributor.run(train, sys.argv[1], os.getcwd(), STEPS // 2)
    second = distributor.run(train, sys.argv[1], os.getcwd(), STEPS)
spark.stop()

for name, (right, evaluated) in (("half", first["right"]), ("all", second["right"])):
    print(f"right labels after {name} of the steps = {100 * right / evaluated:.1f} %")
print(f"""step that the second start goes on from = {second["begin"]}
rows trained on = {STEPS * 2 * BATCH * PIECES}
rows evaluated, by both ranks = {second["right"][1]:.0f}
step of two ranks = {1000 * second["seconds"]:.0f} ms
gradient of a step = {second["gradient_bytes"] / 1e6:.1f} MB
all-reduce of it, two ranks on loopback = {1000 * second["reduced"]:.0f} ms
checkpoint = {Path("checkpoint.pt").stat().st_size / 1e6:.1f} MB""")
Path("train.json").write_text(json.dumps(second), "utf-8")
