"""Where MLlib ends: which package is a docstring from? The same rows, by MLlib and DistilBERT.

python texts.py TEXTS MODEL
"""

import os
import sys
import time

os.environ["USE_TF"] = "0"  # transformers need not load TensorFlow

import matplotlib.pyplot as plt
import pandas as pd
import torch
from pyspark.ml import Pipeline
from pyspark.ml.classification import LogisticRegression, RandomForestClassifier
from pyspark.ml.evaluation import MulticlassClassificationEvaluator
from pyspark.ml.feature import IDF, HashingTF, RegexTokenizer, StringIndexer
from pyspark.sql import SparkSession
from transformers import AutoModelForSequenceClassification, AutoTokenizer

TRAIN, TEST, WORDS = 120, 60, 40  # rows of a label to train on and to test; words of a text
EPOCHS, BATCH, RATE = 3, 32, 3e-4
GRAY = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")

texts = pd.read_parquet(sys.argv[1])
texts["text"] = texts.text.str.split().str[:WORDS].str.join(" ")
texts = texts[texts.text.str.len() >= 20].drop_duplicates("text")
texts = texts.groupby("label").sample(TRAIN + TEST, random_state=1)
is_test = texts.groupby("label").cumcount() >= TRAIN
print(f"texts to train on = {(~is_test).sum()}")
accuracy, seconds = {}, {}

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.warehouse.dir", os.getcwd()).config("spark.sql.shuffle.partitions", 2)
    .getOrCreate()
)  # fmt: skip
spark.sparkContext.setLogLevel("ERROR")
train = spark.createDataFrame(texts[~is_test]).repartition(2).cache()
test = spark.createDataFrame(texts[is_test]).cache()
# A text becomes a vector of word counts: neither order nor meaning of words is left in it.
vectors = [
    StringIndexer(inputCol="label", outputCol="index"),
    RegexTokenizer(inputCol="text", outputCol="words", pattern=r"\W+"),
    HashingTF(inputCol="words", outputCol="counts", numFeatures=2**12),
    IDF(inputCol="counts", outputCol="features"),
]
models = {
    "random forest": RandomForestClassifier(labelCol="index", numTrees=20, maxDepth=8, seed=1),
    "logistic regression": LogisticRegression(labelCol="index", regParam=0.1),
}
evaluator = MulticlassClassificationEvaluator(labelCol="index", metricName="accuracy")
for name, model in models.items():
    began = time.perf_counter()
    fitted = Pipeline(stages=[*vectors, model]).fit(train)
    seconds[name] = time.perf_counter() - began
    accuracy[name] = 100 * evaluator.evaluate(fitted.transform(test))
spark.stop()

torch.manual_seed(1)
torch.set_num_threads(2)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[2])
labels = sorted(texts.label.unique())
model = AutoModelForSequenceClassification.from_pretrained(sys.argv[2], num_labels=len(labels))
targets = torch.tensor(texts.label.map(labels.index).to_numpy())


def logits(positions):
    """Forward pass of these rows, in bfloat16 where autocast takes it."""
    batch = tokenizer(
        texts.text.iloc[positions].tolist(), truncation=True, max_length=96,
        padding=True, pad_to_multiple_of=32, return_tensors="pt",  # few shapes: each is compiled
    )  # fmt: skip
    with torch.autocast("cpu", torch.bfloat16):
        return model(**batch).logits.float()


rows = torch.tensor((~is_test).to_numpy().nonzero()[0])
steps = EPOCHS * (len(rows) // BATCH)
optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps, anneal_strategy="linear")
began = time.perf_counter()
model.train()
for _ in range(EPOCHS):
    for positions in rows[torch.randperm(len(rows))].split(BATCH)[: steps // EPOCHS]:
        loss = torch.nn.functional.cross_entropy(logits(positions.numpy()), targets[positions])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
seconds["DistilBERT"] = time.perf_counter() - began
model.eval()
rows = torch.tensor(is_test.to_numpy().nonzero()[0])
with torch.no_grad():
    answers = torch.cat([logits(part.numpy()).argmax(dim=1) for part in rows.split(BATCH)])
accuracy["DistilBERT"] = 100 * (answers == targets[rows]).float().mean().item()

for name in accuracy:
    print(f"{name}, texts with the right label = {accuracy[name]:.1f} %")
    print(f"{name}, training = {seconds[name]:.1f} s")

plt.rcParams.update(dict.fromkeys(GRAY, "#808080"))
plt.figure(figsize=(6, 3.2))
bars = plt.barh(list(accuracy), list(accuracy.values()), color=["#1f77b4", "#1f77b4", "#ff7f0e"])
plt.bar_label(bars, [f"{seconds[name]:.0f} s" for name in accuracy], padding=4, color="#808080")
plt.xlim(0, 100)
plt.xlabel("test texts with the right label, %; beside: seconds of training")
plt.title(f"Nine packages, {TRAIN} texts of each: words counted, or read")
plt.tight_layout()
plt.savefig("texts.svg", transparent=True)
