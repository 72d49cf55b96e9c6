"""Ray Data as the source, Ray Train as the loop: python data_train.py TEXTS MODEL

DistilBERT turns each text into 384 numbers (Ray Data); two ranks train a linear layer on them.
"""

import os
import sys
import tempfile

import pandas as pd
from one_node import ray_of_one_node

TEXTS, MODEL = sys.argv[1:3]
ROWS, EPOCHS, TOKENS = 31, 8, 32
texts = pd.read_parquet(TEXTS)
texts = texts[texts.text.str.strip() != ""].groupby("label").sample(ROWS, random_state=0)
texts, names = texts.sample(frac=1, random_state=0), sorted(texts.label.unique())
texts["number"] = range(len(texts))
os.makedirs("texts", exist_ok=True)
for part in range(8):  # a data set is a directory of files: a file is a task
    texts[part::8].to_parquet(f"texts/{part}.parquet")


class Encoder:
    """A stage with state: the model is read once a process, not once a batch."""

    def __init__(self) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        torch.set_num_threads(1)
        self.tokenizer = AutoTokenizer.from_pretrained(MODEL)
        self.model = AutoModel.from_pretrained(MODEL).eval().requires_grad_(False)

    def __call__(self, batch: dict) -> dict:
        cut = {"truncation": True, "max_length": TOKENS, "padding": True, "return_tensors": "pt"}
        words = self.tokenizer([*batch["text"]], **cut)
        mask = words["attention_mask"][..., None]
        features = (self.model(**words).last_hidden_state * mask).sum(1) / mask.sum(1)
        label = [names.index(name) for name in batch["label"]]
        return {"number": batch["number"], "features": features.numpy(), "label": label}


def train_loop(config: dict) -> list:
    """One rank; it returns what each rank has read, and its weights."""
    import torch
    from ray import train
    from ray.train.torch import prepare_model

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = prepare_model(torch.nn.Linear(384, config["classes"]))  # in DDP
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    rank, rows = train.get_context().get_world_rank(), []
    for epoch in range(EPOCHS):
        for batch in train.get_dataset_shard("train").iter_torch_batches(batch_size=32):
            loss = torch.nn.functional.cross_entropy(model(batch["features"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            rows += [(epoch, number) for number in batch["number"].tolist()]
        with tempfile.TemporaryDirectory() as place:
            torch.save(model.module.state_dict(), f"{place}/model.pt")
            saved = train.Checkpoint.from_directory(place) if rank == 0 else None
            train.report({"loss": loss.item()}, checkpoint=saved)  # by all ranks
    ranks, weights = [None, None], model.module.weight.detach().numpy()
    torch.distributed.all_gather_object(ranks, (set(rows), weights))
    return ranks


with ray_of_one_node(cpus=2) as ray:
    import torch
    from ray import train
    from ray.train.torch import TorchTrainer
    from ray.util.queue import Queue

    ray.data.DataContext.get_current().enable_progress_bars = False
    counts = Queue(actor_options={"num_cpus": 0})  # an actor: the processes share nothing else

    def clean(batch: dict) -> dict:
        """A stage without state: tasks run it."""
        counts.put(len(batch["text"]))
        return batch | {"text": [" ".join(text.split()) for text in batch["text"]]}

    def cleaned_since() -> int:
        """Texts since the last call."""
        return sum(counts.get_nowait_batch(counts.size()))

    cleaned = ray.data.read_parquet(os.path.abspath("texts")).map_batches(clean)
    print(f"1. A data set is a plan: {len(texts)} texts in 8 files, cleaned, then encoded.")
    print(f"texts cleaned when the plan is made = {cleaned_since()}")
    sum(len(batch["label"]) for _ in range(2) for batch in cleaned.iter_batches())
    print(f"texts cleaned in two epochs = {cleaned_since()}")
    one = ray.data.ActorPoolStrategy(size=1)  # materialize: run it, keep the rows in the store
    encoded = cleaned.map_batches(Encoder, batch_size=32, compute=one).materialize()
    sum(len(batch["label"]) for _ in range(2) for batch in encoded.iter_batches())
    print(f"texts cleaned by materialize() and two epochs = {cleaned_since()}\n")

    learn, test = encoded.split_at_indices([len(texts) * 4 // 5])
    print(f"2. Two ranks train on {learn.count()} rows, {EPOCHS} epochs.")
    result = TorchTrainer(
        train_loop,
        train_loop_config={"classes": len(names)},
        # Half a CPU each: Ray Data's tasks need the rest, or both would wait for ever.
        scaling_config=train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
        run_config=train.RunConfig(storage_path=os.path.abspath("results"), name="linear"),
        datasets={"train": learn},
    ).fit()
    (one, weights), (other, same) = result.return_value
    print(f"row reads by both ranks = {len(one & other)}")
    print(f"rows left out, all epochs = {learn.count() * EPOCHS - len(one | other)}")
    print(f"largest difference of the ranks' weights = {abs(weights - same).max():.6g}\n")

    layer, batch = torch.nn.Linear(384, len(names)), test.take_batch(len(texts))
    with result.checkpoint.as_directory() as place:
        layer.load_state_dict(torch.load(f"{place}/model.pt"))
    right = layer(torch.tensor(batch["features"])).argmax(1).numpy() == batch["label"]
    print(f"accuracy of the checkpoint on {len(right)} other texts = {right.mean():.3f}")
