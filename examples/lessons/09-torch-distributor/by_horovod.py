"""One epoch of the same training by horovod.spark.run, on one_application.py's rows.

python by_horovod.py MODEL
"""

import os
import sys
import time

import horovod.spark
from pyspark.sql import SparkSession

MODEL = os.path.abspath(sys.argv[1])
RANKS, EPOCHS, BATCH = 2, 1, 16


def train(rows: str, model: str) -> dict:
    """One rank, in a process beside a Spark task. What differs from DDP: five lines of hvd."""
    import horovod.torch as hvd
    import pandas as pd
    import torch
    from transformers import AutoModelForSequenceClassification, logging

    logging.set_verbosity_error()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hvd.init()
    table = pd.read_parquet(rows).sort_values("id")
    mine = table[hvd.rank() :: hvd.size()][: len(table) // hvd.size()]
    words, labels = torch.tensor([*mine.words]), torch.tensor(mine.number.to_numpy())
    classes = table.number.nunique()
    net = AutoModelForSequenceClassification.from_pretrained(model, num_labels=classes).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-4)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)
    for epoch in range(EPOCHS):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH):
            inputs = words[batch]
            logits = net(input_ids=inputs, attention_mask=(inputs != 0).long()).logits
            loss = torch.nn.functional.cross_entropy(logits, labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    head = net.classifier.weight.detach().numpy().copy()
    return {"rank": hvd.rank(), "told": hvd.local_size(), "rows": len(mine), "head": head}


def end(how: str) -> str:
    """A rank that fails."""
    if how == "raise":
        raise ValueError("the loss is NaN")
    sys.exit(3)


# Else the first python3 of PATH would run the ranks, and Spark would listen on the network.
os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
os.environ["USE_TF"] = "0"  # transformers would import TensorFlow into each rank
spark = (
    SparkSession.builder.master(f"local[{RANKS}]")
    .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    .getOrCreate()
)  # fmt: skip
spark.sparkContext.setLogLevel("OFF")
words = {"use_gloo": True, "verbose": 0, "env": dict(os.environ)}
words |= {"stdout": sys.stderr, "stderr": sys.stderr}

started = time.perf_counter()
results = horovod.spark.run(train, (os.path.abspath("train"), MODEL), num_proc=RANKS, **words)
print(f"train one epoch on two ranks by Horovod = {time.perf_counter() - started:.1f} s")
print(f"results, one of each rank = {len(results)}")
print(f"ranks of the results, in their order: {', '.join(str(one['rank']) for one in results)}")
print(f"Horovod: rows a rank trained on = {results[0]['rows']}")
print(f"Horovod: ranks on its node, as a rank is told = {results[0]['told']}")
difference = abs(results[0]["head"] - results[1]["head"]).max()
print(f"largest difference of the ranks' heads = {difference:.6g}\n")

failures = {"raise": "a ValueError", "exit": "sys.exit(3)"}
hidden = 0
for how, words_of in failures.items():
    try:
        returned = horovod.spark.run(end, (how,), num_proc=1, **words)
        hidden += 1
        print(f"a rank with {words_of}: the driver's call returns {returned}")
    except Exception as error:  # noqa: BLE001 - Horovod has no type of its own
        print(f"a rank with {words_of}: the driver's call raises {type(error).__name__}")
print(f"failures of two that look like success, by Horovod = {hidden}")
spark.stop()
