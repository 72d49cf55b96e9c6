"""From a DataFrame to a saved model in one application: python one_application.py TEXTS MODEL."""

import os
import sys
import time

import pandas as pd
from pyspark.ml.torch.distributor import TorchDistributor
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType
from pyspark.sql.window import Window

TEXTS, MODEL = map(os.path.abspath, sys.argv[1:3])
ROWS, RANKS, EPOCHS, BATCH, TOKENS = 50, 2, 3, 16, 48  # rows: of each class


def train(rows: str, model: str, classes: int, to: str) -> dict:
    """One rank: the driver's Spark does not exist here, only what it wrote does."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from transformers import AutoModelForSequenceClassification, logging

    logging.set_verbosity_error()
    torch.set_num_threads(1)  # see the figure "ranks on its node, as a rank is told"
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    table = pd.read_parquet(rows).sort_values("id")
    mine = table[rank::world][: len(table) // world]  # the same number, or the last step hangs
    words, labels = torch.tensor([*mine.words]), torch.tensor(mine.number.to_numpy())
    net = AutoModelForSequenceClassification.from_pretrained(model, num_labels=classes)
    ddp = DistributedDataParallel(net.train())
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=2e-4)
    for epoch in range(EPOCHS):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(BATCH):
            inputs = words[batch]
            logits = ddp(input_ids=inputs, attention_mask=(inputs != 0).long()).logits
            loss = torch.nn.functional.cross_entropy(logits, labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if rank == 0:
        net.save_pretrained(to)
    del ddp  # before its group: the other way round it may deadlock on the GIL (torch 2.13)
    dist.destroy_process_group()
    return {"rows": len(mine), "world": world, "loss": loss.item(),
            "told": int(os.environ["LOCAL_WORLD_SIZE"])}  # fmt: skip


@F.pandas_udf(ArrayType(IntegerType()))
def tokens(texts: pd.Series) -> pd.Series:
    """Token ids, padded to the same length."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    return pd.Series(tokenizer([*texts], truncation=True, max_length=TOKENS,
                               padding="max_length")["input_ids"])  # fmt: skip


# Else the first python3 of PATH would run the ranks, and Spark would listen on the network.
os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
os.environ["USE_TF"] = "0"  # transformers would import TensorFlow into each rank
spark = (
    SparkSession.builder.master(f"local[{RANKS}]")  # a barrier stage needs a core for each rank
    .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.shuffle.partitions", RANKS).getOrCreate()
)  # fmt: skip
spark.sparkContext.setLogLevel("OFF")
started = time.perf_counter()
clean = (
    spark.read.parquet(TEXTS).withColumn("text", F.trim("text"))
    .where("text != ''").dropDuplicates(["text"])
)  # fmt: skip
draw = Window.partitionBy("label").orderBy(F.xxhash64("id"))
drawn = clean.withColumn("place", F.row_number().over(draw)).where(F.col("place") <= ROWS)
names = sorted(row.label for row in clean.select("label").distinct().collect())
number = F.array_position(F.lit(names), F.col("label")) - 1
encoded = drawn.select("id", number.alias("number"), "place", tokens("text").alias("words"))
is_test = F.col("place") % 5 == 0
encoded.where(~is_test).write.mode("overwrite").parquet("train")
encoded.where(is_test).write.mode("overwrite").parquet("test")
print(f"rows to train on = {spark.read.parquet('train').count()}")
print(f"clean, draw and tokenize by Spark = {time.perf_counter() - started:.1f} s")

started = time.perf_counter()
distributor = TorchDistributor(RANKS, local_mode=False, use_gpu=False)
result = distributor.run(train, os.path.abspath("train"), MODEL, len(names),
                         to=os.path.abspath("model"))  # fmt: skip
print(f"train on two ranks = {time.perf_counter() - started:.1f} s")
print(f"ranks = {result['world']}")
print(f"rows a rank trained on = {result['rows']}")
print(f"ranks on its node, as a rank is told = {result['told']}\n")

print("Calls that are often shown, and what Spark 4.2 says:")
for name, call in {
    "num_workers=": lambda: TorchDistributor(num_workers=RANKS, use_gpu=False),
    "a DataFrame in the closure": lambda: distributor.run(lambda: encoded.count()),
    "run(train, data=DataFrame)": lambda: distributor.run(train, data=encoded),
}.items():
    try:
        call()
    except Exception as error:  # noqa: BLE001 - each fails in its own way
        print(f"  {name:27} {type(error).__name__}: {str(error).splitlines()[0][:56]}")
spark.stop()

import torch  # noqa: E402 - the driver needs it only now
from transformers import AutoModelForSequenceClassification  # noqa: E402

held_out, net = pd.read_parquet("test"), AutoModelForSequenceClassification.from_pretrained("model")
with torch.inference_mode():
    inputs = torch.tensor([*held_out.words])
    guess = net.eval()(inputs, attention_mask=(inputs != 0).long()).logits.argmax(1).numpy()
right = (guess == held_out.number).mean()
print(f"\naccuracy of the saved model on {len(held_out)} other texts = {right:.3f}")
print(f"classes of the saved model = {net.config.num_labels}")
